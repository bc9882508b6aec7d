"""Which tensor of the base stands for a tensor of the target: the one of the same name, or of the
same place in a stack.

A target with more layers has names that its base has not: `layers.7.mlp.weight` then corresponds to
the layer at the same relative depth of the base, and the ratio of the two stacks is the growth in
depth. Not every number is a layer: in a Sequential they count unlike modules, so where shapes of a
stack differ, the counterpart is one that fits: each axis has stayed, or has grown by the ratio by
which axes of this pair usually grow.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orderone.planning.roles.vocabulary import EXPERT

Shape = tuple[int, ...]
Pattern = tuple[str | None, ...]
Position = tuple[int, ...]
Stacks = Mapping[Pattern, list[Position]]


@dataclass(frozen=True)
class Counterpart:
    name: str  # in the base
    depth: float = 1.0  # layers of this stack, target over base


def counterparts(target: Mapping[str, Shape], base: Mapping[str, Shape]) -> dict[str, Counterpart]:
    """For every target name, its counterpart; a ValueError lists what has none."""
    ours = _stacks(target)
    theirs = _stacks(base)
    for one, other, whose in ((ours, theirs, "the base"), (theirs, ours, "the model")):
        strangers = [
            _join(pattern, at)
            for pattern, found in one.items()
            if pattern not in other
            for at in found
        ]
        if strangers:
            raise _other_architecture(f"{whose} has nothing like {_few(strangers)}")
    deeper = _depths(ours, theirs)
    usual = _usual_ratio(target, base)
    return {
        _join(pattern, at): Counterpart(
            _nearest(pattern, at, ours, theirs, target, base, usual), deeper[pattern]
        )
        for pattern, found in ours.items()
        for at in found
    }


def _nearest(
    pattern: Pattern,
    at: Position,
    ours: Stacks,
    theirs: Stacks,
    target: Mapping[str, Shape],
    base: Mapping[str, Shape],
    usual: float,
) -> str:
    """The same name in a stack of the same length; otherwise the place at the same relative depth
    that fits."""
    name = _join(pattern, at)
    candidates = {_join(pattern, other): other for other in theirs[pattern]}
    if len(ours[pattern]) == len(candidates) and name in candidates:
        return name
    misfits = {other: _misfit(target[name], base[other], usual) for other in candidates}
    fewest = min(misfits.values())
    if fewest and len({base[other] for other in candidates}) > 1:
        raise _other_architecture(f"no tensor of the base fits {name} {target[name]}")
    here = [_relative(column) for column in zip(*ours[pattern], strict=True)]
    there = [_relative(column) for column in zip(*theirs[pattern], strict=True)]

    def distance(other: str) -> float:
        return sum(
            abs(a[i] - b[j]) for i, j, a, b in zip(at, candidates[other], here, there, strict=True)
        )

    return min((other for other in candidates if misfits[other] == fewest), key=distance)


def _misfit(one: Shape, other: Shape, usual: float) -> int:
    """Axes that neither stayed nor grew as usual."""
    if len(one) != len(other):
        return len(one) + len(other)
    return sum(a != b and a != b * usual for a, b in zip(one, other, strict=True))


def _usual_ratio(target: Mapping[str, Shape], base: Mapping[str, Shape]) -> float:
    """The growth that most axes of equally named tensors have."""
    pairs = [
        (target[name], base[name])
        for name in target
        if name in base and len(target[name]) == len(base[name])
    ]
    ratios = Counter(
        a / b for one, other in pairs for a, b in zip(one, other, strict=True) if a != b and b
    )
    return ratios.most_common(1)[0][0] if ratios else 1.0


def _relative(indices: Iterable[int]) -> dict[int, float]:
    """Where an index stands between the first (0) and the last (1): the last layer is like the last
    layer."""
    ranked = sorted(set(indices))
    return {index: rank / max(len(ranked) - 1, 1) for rank, index in enumerate(ranked)}


def _depths(ours: Stacks, theirs: Stacks) -> dict[Pattern, float]:
    """Growth in depth of every stack: in its layers, or, where stages stay, in the blocks of all
    stages."""
    layers = _layers(ours), _layers(theirs)
    result = {}
    for pattern, found in ours.items():
        here, there = (of.get(pattern, {0}) for of in layers)
        layers_stay = len(here) == len(there)
        blocks = 1.0 if _experts(pattern) else len(found) / len(theirs[pattern])
        result[pattern] = blocks if layers_stay else len(here) / len(there)
    return result


def _layers(stacks: Stacks) -> dict[Pattern, set[int]]:
    """The layers of the stack that a tensor is in. Layers share kinds of tensors, at least with
    others that share some with these; what stands before and behind them in one Sequential does
    not."""
    kinds: dict[Pattern, list[set[int]]] = {}
    for pattern, found in stacks.items():
        if found[0]:
            mine = {at[0] for at in found}
            groups = kinds.setdefault(_prefix(pattern), [])
            apart = [group for group in groups if not group & mine]
            kinds[_prefix(pattern)] = [
                *apart,
                mine.union(*(group for group in groups if group & mine)),
            ]
    return {
        pattern: next(group for group in kinds[_prefix(pattern)] if found[0][0] in group)
        for pattern, found in stacks.items()
        if found[0]
    }


def _experts(pattern: Pattern) -> bool:
    """More experts make no deeper network."""
    return any(part is not None and EXPERT in part for part in pattern)


def _prefix(pattern: Pattern) -> Pattern:
    """What stands before the first number."""
    if None in pattern:
        return pattern[: pattern.index(None)]
    return pattern


def _stacks(names: Iterable[str]) -> Stacks:
    result: dict[Pattern, list[Position]] = {}
    for name in names:
        parts = name.split(".")
        pattern = tuple(None if part.isdigit() else part for part in parts)
        result.setdefault(pattern, []).append(tuple(int(part) for part in parts if part.isdigit()))
    return result


def stack_of(name: str) -> str:
    """`layers.7.mlp.weight` as `layers.*.mlp.weight`: the name all layers share."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _join(pattern: Pattern, at: Position) -> str:
    numbers = iter(at)
    return ".".join(str(next(numbers)) if part is None else part for part in pattern)


def _other_architecture(why: str) -> ValueError:
    return ValueError(
        f"base: expected the same architecture as the model, but {why}; build the base with the"
        " same code and smaller sizes"
    )


def _few(names: list[str], most: int = 3) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
