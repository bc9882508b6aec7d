"""Compose a rule with axes of scale into one value, for `rule=` of `plan`, `coord_check`, `sweep`.

    recipe = rules.compose("mup", depth="completep", horizon="sde", decay="timescale")
    o1.plan(model, base=base, rule=recipe, batch=(64, 512), tokens=(2e8, 5e9))

The factors of all axes are multiplied, so that their order does not count.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from orderone.core.errors import InputError, one_of
from orderone.core.inputs import Name, UserInput
from orderone.rules.axes import (
    DECAY,
    DEPTH_RULES,
    EXPERT_RULES,
    HORIZONS,
    RANK_RULES,
    REPETITION_RULES,
    Axis,
)
from orderone.rules.parameterizations import TABLES, table
from orderone.rules.plugins import plugin, plugins
from orderone.theory.exponents import Parameterization

AxisInput: TypeAlias = Annotated[str | Axis, UserInput]
# option of `plan` -> names of its rules
_RULES: dict[str, Collection[str]] = {
    "depth": DEPTH_RULES,
    "horizon": HORIZONS,
    "decay": DECAY,
    "expert_rule": EXPERT_RULES,
    "rank_rule": RANK_RULES,
    "repetition_rule": REPETITION_RULES,
}
RESERVED = ("width", "depth", "batch", "tokens", "experts", "rank", "repetition")


@dataclass(frozen=True)
class Composition:
    """A rule with rules for the other axes of scale. None leaves the choice to `plan`."""

    name: str
    rule: str | Parameterization
    depth: str | None = None
    horizon: str | None = None
    decay: str | None = None
    expert_rule: str | None = None
    rank_rule: str | None = None
    repetition_rule: str | None = None
    axes: tuple[Axis, ...] = ()


def compose(
    rule: Annotated[str | Parameterization | Composition, UserInput],
    *axes: AxisInput,
    depth: Name | None = None,
    horizon: Name | None = None,
    decay: Name | None = None,
    expert_rule: Name | None = None,
    rank_rule: Name | None = None,
    repetition_rule: Name | None = None,
    name: Name | None = None,
) -> Composition:
    """Return one value with a rule for width, and rules for other axes of scale.

    Args:
        rule: Rule for the width: a name of `rules.names()`, a rule of `rules.custom`, or a
            composition, to which axes are added.
        axes: Further axes: names of installed ones, or `Axis` values. A plan takes their sizes as
            axes={"name": (base, target)}.
        depth: "sqrt" or "completep".
        horizon: Rule for batch size and tokens: "sde" or "power".
        decay: Convention of weight decay: "independent", "timescale", "sqrt", "inverse-width" or
            "proportional".
        expert_rule: Rule for the number of experts: "mup", "mssp" or "jiang".
        rank_rule: Rule for the rank of adapters: "mup" or "mua".
        repetition_rule: Rule for the number of queries that share a key: "mup" or "gqa-mup".
        name: Name in plans; by default that of the rule.
    """
    start = _as_composition(rule)
    read = [*start.axes, *(read_axis(axis) for axis in axes)]
    seen = [axis.name for axis in read]
    if len(set(seen)) != len(seen):
        raise InputError(
            f"axes: expected every axis once, got {', '.join(seen)}",
            "axis-twice",
            argument="axes",
        )
    choices: dict[str, str | None] = {}
    passed = (depth, horizon, decay, expert_rule, rank_rule, repetition_rule)
    for (option, known), value in zip(_RULES.items(), passed, strict=True):
        choices[option] = getattr(start, option) if value is None else one_of(value, known, option)
    return Composition(
        name=start.name if name is None else str(name),
        rule=start.rule,
        axes=tuple(read),
        **choices,
    )


def find_composition(rule: object) -> Composition | None:
    """Return a composition, or the installed one with this name; None for another rule."""
    if isinstance(rule, Composition):
        return rule
    if isinstance(rule, str) and rule.lower() not in TABLES:
        return plugin(rule.lower(), Composition)
    return None


def _as_composition(rule: str | Parameterization | Composition) -> Composition:
    found = find_composition(rule)
    if found is not None:
        return found
    if isinstance(rule, Parameterization):
        return Composition(rule.name, rule)
    assert not isinstance(rule, Composition)  # `find_composition` returns these
    known = table(rule)
    return Composition(known.name, known.name)


def read_axis(axis: AxisInput) -> Axis:
    """Return an axis by its name, or as it is."""
    if isinstance(axis, Axis):
        found = axis
    else:
        found = plugin(axis, Axis)
        if found is None:
            known = plugins(Axis)
            if not known:
                raise InputError(
                    f"axes: unknown axis {axis!r}; no installed package has an axis (entry points"
                    " 'orderone.rules'). Expected the name of one, or an Axis in"
                    " rule=rules.compose(...)",
                    "unknown-name",
                    argument="axis",
                )
            found = known[one_of(axis, known, "axis")]
    if found.name in RESERVED:
        raise InputError(
            f"axes: the name {found.name} is that of a built-in axis; expected another name",
            "axis-twice",
            argument="axes",
        )
    return found
