"""Compose a rule with axes of scale into one value, for `rule=` of `plan`, `coord_check`, `sweep`.

    recipe = rules.compose("mup", depth="completep", horizon="sde", decay="timescale")
    o1.plan(model, base=base, rule=recipe, batch=(64, 512), tokens=(2e8, 5e9))

The factors of all axes are multiplied, so that their order does not count.
"""

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from orderone.core.errors import InputError, one_of
from orderone.core.inputs import Name, UserInput
from orderone.rules.axes import DECAY, DEPTH_RULES, HORIZONS, Axis
from orderone.rules.parameterizations import TABLES, table
from orderone.rules.plugins import plugin, plugins
from orderone.theory.exponents import Parameterization

AxisInput: TypeAlias = Annotated[str | Axis, UserInput]
RESERVED = ("width", "depth", "batch", "tokens", "experts", "rank", "repetition")


@dataclass(frozen=True)
class Composition:
    """A rule with rules for the other axes of scale. None leaves the choice to `plan`."""

    name: str
    rule: str | Parameterization
    depth: str | None = None
    horizon: str | None = None
    decay: str | None = None
    axes: tuple[Axis, ...] = ()


def compose(
    rule: Annotated[str | Parameterization | Composition, UserInput],
    *axes: AxisInput,
    depth: Name | None = None,
    horizon: Name | None = None,
    decay: Name | None = None,
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
    return Composition(
        name=start.name if name is None else str(name),
        rule=start.rule,
        depth=start.depth if depth is None else one_of(depth, DEPTH_RULES, "depth"),
        horizon=start.horizon if horizon is None else one_of(horizon, HORIZONS, "horizon"),
        decay=start.decay if decay is None else one_of(decay, DECAY, "decay"),
        axes=tuple(read),
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
            found = known[one_of(axis, known, "axis")]
    if found.name in RESERVED:
        raise InputError(
            f"axes: the name {found.name} is that of a built-in axis; expected another name",
            "axis-twice",
            argument="axes",
        )
    return found
