"""What a tensor does, seen from its dimensions as the width grows: its role, its growth, and the
reason in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from orderone.core.errors import one_of
from orderone.observe.layouts import Layout
from orderone.planning.counterparts import stack_of
from orderone.planning.growth import Tensor, Widths
from orderone.planning.names import is_table
from orderone.rules.factors import Growth
from orderone.theory.exponents import ROLES

FIXED = "fixed"  # no dimension grows: exponents are 0
OVERRIDES = (*ROLES, FIXED)


class AmbiguousRole(ValueError):  # noqa: N818
    """Shapes and owner do not tell what a tensor does; `overrides` does."""


@dataclass(frozen=True)
class Role:
    role: str
    growth: Growth
    reason: str
    tied: float | None = (
        None  # for an embedding that is the readout too: growth of the readout's fan-in
    )
    bottleneck: bool = False  # a readout whose outputs go on into the network


_NO_ROLE = Role(FIXED, Growth(), "")


@dataclass(frozen=True)
class Doubt:
    """A tensor whose role cannot be told."""

    tensor: Tensor
    candidates: Sequence[str]
    why: str


def _message(doubts: Sequence[Doubt]) -> str:
    """Every stack once: layers have the same doubt."""
    by_stack = {stack_of(doubt.tensor.item.name): doubt for doubt in reversed(doubts)}
    lines = []
    for stack, d in reversed(by_stack.items()):
        owner = ", ".join(f"{place.owner} {place.module}".strip() for place in d.tensor.item.places)
        shapes = f"{d.tensor.base_shape} -> {d.tensor.item.shape}"
        lines.append(
            f"{stack} {shapes} in {owner}: {d.why}. It could be {' or '.join(d.candidates)}"
        )
    example = f'overrides={{"{next(reversed(by_stack))}": role}}'
    remedy = (
        f"Say which: plan(..., {example}), register the module type (orderone.register), or give an"
        " example batch"
    )
    return ". ".join([*lines, f"{remedy}: plan(..., inputs=...)"])


def roles(
    tensors: Sequence[Tensor],
    widths: Widths,
    overrides: Mapping[str, str] | None = None,
    outputs: Iterable[str] = (),
) -> dict[str, Role]:
    """The role of every tensor. `outputs` names modules known to be the model's output layer."""
    chosen = read_overrides(overrides or {}, [t.item.name for t in tensors])
    known = frozenset(outputs)
    found: dict[str, Role] = {}
    doubts: list[Doubt] = []
    for t in tensors:
        role = _role(t, widths, chosen.get(t.item.name), known)
        if isinstance(role, Doubt):
            doubts.append(role)
        else:
            found[t.item.name] = role
    if not known:
        doubts += _doubt_about_the_output(tensors, widths, found, chosen)
    if doubts:
        raise AmbiguousRole(_message(doubts))
    return found


def _doubt_about_the_output(
    tensors: Sequence[Tensor], widths: Widths, found: Mapping[str, Role], chosen: Mapping[str, str]
) -> list["Doubt"]:
    """The last matrix may be the output; if its fan-out is the size of the width and of a
    vocabulary, nobody can tell."""
    matrices = [t for t in tensors if {layout.kind for layout in t.layouts} == {"matrix"}]
    if (
        not matrices
        or matrices[-1].item.name in chosen
        or found.get(matrices[-1].item.name, _NO_ROLE).role != "hidden"
    ):
        return []
    last = matrices[-1]
    like_both = any(
        size in widths.picked and widths.is_width(size)
        for size in last.over(last.layouts[0].fan_out)
    )
    why = "its fan-out grows like a width and like a vocabulary"
    if like_both:
        return [Doubt(last, ("readout", "hidden"), why)]
    return []


def read_overrides(overrides: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    result = {}
    for pattern, role in overrides.items():
        role = one_of(role, OVERRIDES, f"role in overrides[{pattern!r}]")
        found = [name for name in names if fnmatch(name, pattern)]
        if not found:
            raise ValueError(
                f"overrides: no tensor is called {pattern!r}; the model has {names[0]}, ...,"
                f" {names[-1]}"
            )
        result |= dict.fromkeys(found, role)
    return result


def _role(t: Tensor, widths: Widths, override: str | None, outputs: frozenset[str]) -> Role | Doubt:
    if override is not None:
        return _overridden(t, widths, override)
    kinds = {layout.kind for layout in t.layouts}
    if {"lookup", "matrix"} <= kinds:
        return _tied(t, widths)
    if not t.layouts:
        return _by_shape(t, widths)
    layout = t.layouts[0]
    if layout.kind == "vector":
        return _vector(t, widths)
    if layout.kind == "lookup":
        return _lookup(t, widths, layout)
    output = any(place.module in outputs for place in t.item.places)
    found = [_matrix(t, widths, other, output) for other in t.layouts if other.kind == "matrix"]
    return _both_ways(found) or found[0]


def _both_ways(found: Sequence[Role]) -> Role | None:
    """A matrix that reads the input and, transposed, writes the output."""
    by_role = {role.role: role for role in found}
    if not {"embedding", "readout"} <= set(by_role):
        return None
    reason = "embedding and, transposed, readout in one tensor"
    return Role(
        "embedding", by_role["embedding"].growth, reason, tied=by_role["readout"].growth.fan_in
    )


def _vector(t: Tensor, widths: Widths) -> Role:
    ratio = widths.ratio(t.sizes)
    if ratio == 1:
        return _fixed(t, widths)
    return Role("vector", Growth(fan_out=ratio), "entry by entry along a width")


def _lookup(t: Tensor, widths: Widths, layout: Layout) -> Role:
    ratio = widths.ratio(t.over(layout.fan_out))
    if ratio == 1:
        return _fixed(t, widths)
    return Role("embedding", Growth(fan_out=ratio), "rows are looked up: no sum")


def _tied(t: Tensor, widths: Widths) -> Role:
    layout = next(layout for layout in t.layouts if layout.kind == "lookup")
    looked_up = _lookup(t, widths, layout)
    if looked_up.role == FIXED:
        return looked_up
    return Role(
        "embedding",
        looked_up.growth,
        "embedding and readout in one tensor",
        tied=looked_up.growth.fan_out,
    )


def _matrix(t: Tensor, widths: Widths, layout: Layout, output: bool) -> Role:
    into = t.over(layout.fan_in)
    out = t.over(layout.fan_out)
    growth = Growth(widths.ratio(into), 1.0 if output else widths.ratio(out))
    if growth.fan_in != 1 and growth.fan_out != 1:
        return Role("hidden", growth, "fan-in and fan-out grow")
    if growth.fan_in != 1:
        bottleneck = not output and any(size in widths.consumed and size[1] > 1 for size in out)
        if bottleneck:
            more = f"; its {out[0][1]} outputs go on: a bottleneck that the base does not shrink"
        else:
            more = ""
        return Role(
            "readout", growth, f"fan-in grows, fan-out does not{more}", bottleneck=bottleneck
        )
    if growth.fan_out != 1:
        depthwise = all(target == 1 for _, target in into)
        if depthwise:
            return Role("vector", growth, "one filter per channel: no sum over a width")
        return Role("embedding", growth, "fan-out grows, fan-in does not")
    return _fixed(t, widths)


def _by_shape(t: Tensor, widths: Widths) -> Role | Doubt:
    """Nobody knows the owner: shapes decide where only one answer is possible."""
    grown = [size for size in t.sizes if widths.is_width(size)]
    ratios = {target / base for base, target in grown}
    if not grown:
        return _fixed(t, widths)
    if len(grown) == 1 and all(size in grown or size[1] == 1 for size in t.sizes):
        return Role("vector", Growth(fan_out=ratios.pop()), "a single dimension, and it grows")
    if len(grown) == 2 and len(ratios) == 1:
        ratio = ratios.pop()
        return Role("hidden", Growth(ratio, ratio), "two dimensions grow alike")
    if len(grown) == 1 and is_table(t.item.name):
        return Role("embedding", Growth(fan_out=ratios.pop()), "by its name a table of embeddings")
    if len(grown) == 1:
        return Doubt(
            t,
            ("embedding", "readout", "vector"),
            "one dimension grows, and it may be fan-in or fan-out",
        )
    return Doubt(
        t, ROLES, f"{len(grown)} dimensions grow, and it is not known which are summed over"
    )


def _fixed(t: Tensor, widths: Widths) -> Role:
    other = [widths.what(size) for size in t.sizes if size[0] != size[1]]
    return Role(
        FIXED, Growth(), f"no width; differs in {other[0]}" if other else "no dimension grows"
    )


def _overridden(t: Tensor, widths: Widths, role: str) -> Role:
    """The user knows. Growth along the known axes, or along all that grow."""
    layout = next((layout for layout in t.layouts if layout.kind != "vector"), None)
    everything = widths.ratio(t.sizes)
    if role == "hidden":
        if layout:
            growth = Growth(
                widths.ratio(t.over(layout.fan_in)), widths.ratio(t.over(layout.fan_out))
            )
        else:
            growth = Growth(everything**0.5, everything**0.5)
    elif role == "readout":
        growth = Growth(fan_in=widths.ratio(t.over(layout.fan_in)) if layout else everything)
    else:
        growth = Growth(
            fan_out=(
                1.0
                if role == FIXED
                else widths.ratio(t.over(layout.fan_out))
                if layout
                else everything
            )
        )
    return Role(role, growth, "as given in overrides")
