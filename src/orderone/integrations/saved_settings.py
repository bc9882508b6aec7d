"""Settings of a plan as plain data, to recognise it when a training is resumed."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from orderone.core.errors import InputError
from orderone.planning.plan import Plan

SETTINGS = ("lr", "weight_decay", "eps", "optimizer", "betas", "convention", "row_settings")
# tensor -> setting -> value
SavedSettings: TypeAlias = dict[str, dict[str, Any]]


def settings_of(plan: Plan) -> SavedSettings:
    """Return the settings of every tensor that decide how it is updated."""
    settings: SavedSettings = {}
    for row in plan.rows:
        settings[row.name] = {setting: getattr(row, setting) for setting in SETTINGS}
    return settings


def must_equal(
    saved: Mapping[str, Mapping[str, Any]], plan: Plan, source: str, argument: str
) -> None:
    """Raise an InputError if `source` was trained with other settings than those of `plan`."""
    for name, settings in settings_of(plan).items():
        before = saved.get(name)
        if before is not None and _comparable(before) == _comparable(_only(before, settings)):
            continue
        if before is None:
            was = "is not in it"
        else:
            was = f"had {dict(before)}"
        raise InputError(
            f"{source}: it was trained with another plan: {name} {was}, and the plan has"
            f" {settings}",
            "checkpoint-of-other-plan",
            argument=argument,
        )


def _only(before: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a checkpoint has: those of older versions have fewer."""
    return {setting: settings.get(setting) for setting in before}


def _comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with lists as tuples: files may turn one into the other."""
    plain: dict[str, Any] = {}
    for setting, value in settings.items():
        if isinstance(value, list):
            plain[setting] = tuple(value)
        else:
            plain[setting] = value
    return plain
