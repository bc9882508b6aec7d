"""Counterparts: the tensor of the base that corresponds to a tensor of the target.

It has the same name, or the same relative place in a stack of layers. A target with more layers has
names that its base lacks: `layers.7.mlp.weight` then corresponds to the layer at the same relative
depth of the base, and the ratio of the two numbers of layers is the growth in depth.

Not every number in a name is a layer: in a Sequential, numbers count different modules. If shapes
in a stack differ, the counterpart must fit: each axis has stayed the same, or has grown by the
ratio by which most axes of this pair of models grow.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from orderone.core.errors import InputError
from orderone.planning.roles.vocabulary import EXPERT

Shape = tuple[int, ...]
Pattern = tuple[str, ...]  # parts of a name; NUMBER stands for a number
Position = tuple[int, ...]
Stacks = Mapping[Pattern, Mapping[Position, str]]  # names by the numbers in them

NUMBER = "."  # no part of a name contains it
_NUMBERED_EXPERT = re.compile(rf"(\w*{EXPERT}\w*?)(\d+)", re.IGNORECASE)  # expert_7, expert7


@dataclass(frozen=True)
class Counterpart:
    """Tensor of the base that corresponds to a tensor of the target."""

    name: str  # in the base
    depth: float = 1.0  # layers of this stack, target over base
    # numbers of parallel modules that hold such a tensor (heads as separate modules): base, target
    siblings: tuple[int, int] = (1, 1)


def counterparts(
    target: Mapping[str, Shape],
    base: Mapping[str, Shape],
    parallel: Collection[str] = (),
) -> dict[str, Counterpart]:
    """Return the counterpart of every target name; raise an InputError if one has none.

    `parallel` names the lists whose members are not layers: `blocks.*.attention.heads`.
    """
    ours = _stacks(target)
    theirs = _stacks(base)
    _must_be_in(ours, theirs, "the base")
    _must_be_in(theirs, ours, "the model")
    siblings: dict[Pattern, tuple[int, int]] = {}
    for pattern, positions in ours.items():
        here = _siblings(pattern, positions, parallel)
        there = _siblings(pattern, theirs[pattern], parallel)
        siblings[pattern] = (there, here)
    deeper = _depths(ours, theirs, siblings, parallel)
    usual = _usual_ratio(target, base)
    result: dict[str, Counterpart] = {}
    for pattern, positions in ours.items():
        search = _Search(positions, theirs[pattern], target, base, usual)
        for at, name in positions.items():
            nearest = search.nearest(at, name)
            result[name] = Counterpart(nearest, deeper[pattern], siblings[pattern])
    return result


def counterpart_names(target: Mapping[str, Shape], base: Mapping[str, Shape]) -> dict[str, str]:
    """Return the name of the counterpart of every target name."""
    names: dict[str, str] = {}
    for name, counterpart in counterparts(target, base).items():
        names[name] = counterpart.name
    return names


def _must_be_in(stacks: Stacks, known: Stacks, whose: str) -> None:
    """Raise an InputError if tensors of `stacks` have no counterpart in `known`."""
    unmatched: list[str] = []
    for pattern, positions in stacks.items():
        if pattern not in known:
            unmatched += positions.values()
    if unmatched:
        raise _other_architecture(f"{whose} has no counterpart of {_few(unmatched)}")


class _Search:
    """Counterparts of the tensors of one stack; what they have in common is computed once."""

    def __init__(
        self,
        ours: Mapping[Position, str],
        theirs: Mapping[Position, str],
        target: Mapping[str, Shape],
        base: Mapping[str, Shape],
        usual: float,
    ):
        self.target = target
        self.usual = usual
        self.base_names: set[str] = set(theirs.values())
        self.equally_long: bool = len(ours) == len(theirs)
        self.by_shape: dict[Shape, list[str]] = {}
        for name in theirs.values():
            self.by_shape.setdefault(base[name], []).append(name)
        self.here: list[dict[int, float]] = _relative_places(ours)
        there = _relative_places(theirs)
        self.places: dict[str, list[float]] = {}  # relative depth of the tensors of the base
        for position, name in theirs.items():
            self.places[name] = [column[k] for column, k in zip(there, position, strict=True)]
        self.number: dict[str, int] = {name: k for k, name in enumerate(theirs.values())}
        self._fitting: dict[Shape, list[str]] = {}

    def nearest(self, at: Position, name: str) -> str:
        """Return the same name if the stacks are equally long; otherwise the name at the same
        relative depth whose shape fits."""
        if self.equally_long and name in self.base_names:
            return name
        place = [column[index] for column, index in zip(self.here, at, strict=True)]

        def distance(other: str) -> float:
            total = 0.0
            for ours, theirs in zip(place, self.places[other], strict=True):
                total += abs(ours - theirs)
            return total

        return min(self._that_fit(name), key=distance)

    def _that_fit(self, name: str) -> list[str]:
        """Return the tensors of the base whose shapes fit best, in the order of the base."""
        shape = self.target[name]
        if shape in self._fitting:
            return self._fitting[shape]
        misfits = {other: _misfit(shape, other, self.usual) for other in self.by_shape}
        fewest = min(misfits.values())
        if fewest and len(self.by_shape) > 1:
            raise _other_architecture(f"no tensor of the base fits {name} {shape}")
        names: list[str] = []
        for other, misfit in misfits.items():
            if misfit == fewest:
                names += self.by_shape[other]
        self._fitting[shape] = sorted(names, key=lambda name: self.number[name])
        return self._fitting[shape]


def _relative_places(positions: Iterable[Position]) -> list[dict[int, float]]:
    """Return the relative depth of each number, for each number in a name."""
    return [_relative(column) for column in zip(*positions, strict=True)]


def _misfit(shape: Shape, base_shape: Shape, usual: float) -> int:
    """Return the number of axes that neither stayed the same nor grew by the usual ratio."""
    if len(shape) != len(base_shape):
        return len(shape) + len(base_shape)
    misfits = 0
    for size, base_size in zip(shape, base_shape, strict=True):
        if size != base_size and size != base_size * usual:
            misfits += 1
    return misfits


def _usual_ratio(target: Mapping[str, Shape], base: Mapping[str, Shape]) -> float:
    """Return the ratio by which most axes of equally named tensors grow."""
    ratios: Counter[float] = Counter()
    for name, shape in target.items():
        base_shape = base.get(name)
        if base_shape is None or len(shape) != len(base_shape):
            continue
        for size, base_size in zip(shape, base_shape, strict=True):
            if size != base_size and base_size:
                ratios[size / base_size] += 1
    if not ratios:
        return 1.0
    return ratios.most_common(1)[0][0]


def _relative(indices: Iterable[int]) -> dict[int, float]:
    """Return the relative place of each index between the first (0) and the last (1)."""
    ranked = sorted(set(indices))
    return {index: rank / max(len(ranked) - 1, 1) for rank, index in enumerate(ranked)}


def _siblings(pattern: Pattern, positions: Iterable[Position], parallel: Collection[str]) -> int:
    """Return the number of members of the parallel lists that a tensor is in."""
    number = 1
    level = 0
    for index, part in enumerate(pattern):
        if NUMBER not in part:
            continue
        if _list_name(pattern[:index]) in parallel:
            number *= len({at[level] for at in positions})
        level += 1
    return number


def _list_name(pattern: Pattern) -> str:
    return ".".join(part.replace(NUMBER, "*") for part in pattern)


def _depths(
    ours: Stacks,
    theirs: Stacks,
    siblings: Mapping[Pattern, tuple[int, int]],
    parallel: Collection[str],
) -> dict[Pattern, float]:
    """Return the growth in depth of every stack: ratio of layers, or, if the number of stages stays
    the same, of blocks in all stages. Members of parallel lists are not layers."""
    our_layers = _layers(ours)
    their_layers = _layers(theirs)
    result: dict[Pattern, float] = {}
    for pattern, positions in ours.items():
        here = len(our_layers.get(pattern, {0}))
        there = len(their_layers.get(pattern, {0}))
        siblings_there, siblings_here = siblings[pattern]
        is_layer = _list_name(_prefix(pattern)) not in parallel and not _experts(_prefix(pattern))
        if here != there and is_layer:
            result[pattern] = here / there
        elif _experts(pattern):
            result[pattern] = 1.0
        else:
            layers = len(positions) / siblings_here
            result[pattern] = layers / (len(theirs[pattern]) / siblings_there)
    return result


def _layers(stacks: Stacks) -> dict[Pattern, set[int]]:
    """Return the layers of the stack that each tensor is in.

    Layers of a stack have tensors in common, directly or through other layers. Modules before and
    after the stack in the same Sequential have not.
    """
    groups: dict[Pattern, list[set[int]]] = {}
    for pattern, positions in stacks.items():
        if () in positions:
            continue
        merged = {at[0] for at in positions}
        apart: list[set[int]] = []
        for group in groups.get(_prefix(pattern), []):
            if group & merged:
                merged = merged | group
            else:
                apart.append(group)
        groups[_prefix(pattern)] = [*apart, merged]
    result: dict[Pattern, set[int]] = {}
    for pattern, positions in stacks.items():
        if () in positions:
            continue
        first = next(iter(positions))
        for group in groups[_prefix(pattern)]:
            if first[0] in group:
                result[pattern] = group
                break
    return result


def _experts(pattern: Pattern) -> bool:
    """Return whether the stack consists of experts: more of them do not make a network deeper."""
    return any(EXPERT in part.lower() for part in pattern)


def _prefix(pattern: Pattern) -> Pattern:
    """Return the parts before the first number."""
    for index, part in enumerate(pattern):
        if NUMBER in part:
            return pattern[:index]
    return pattern


def _stacks(names: Iterable[str]) -> Stacks:
    """Return all names, by name without numbers and by numbers.

    Two names with the same numbers, such as `1` and `01`, are no layers of one stack.
    """
    result: dict[Pattern, dict[Position, str]] = {}
    for name in names:
        pattern: list[str] = []
        position: list[int] = []
        for part in name.split("."):
            word, number = numbered(part)
            pattern.append(word)
            if number is not None:
                position.append(number)
        stack = result.setdefault(tuple(pattern), {})
        if tuple(position) in stack:
            result[tuple(name.split("."))] = {(): name}
        else:
            stack[tuple(position)] = name
    return result


@lru_cache(maxsize=2**16)  # few different parts, asked for many times
def numbered(part: str) -> tuple[str, int | None]:
    """Return a part of a name with NUMBER in place of the number of a layer or expert."""
    if part.isdecimal():
        return NUMBER, int(part)
    expert = _NUMBERED_EXPERT.fullmatch(part)
    if expert is not None:
        return expert[1] + NUMBER, int(expert[2])
    return part, None


def is_number(part: str) -> bool:
    """Return whether a part of a name counts layers or experts: `7`, `expert_7`."""
    return numbered(part)[1] is not None


def stack_of(name: str) -> str:
    """Return the name that all layers share: `layers.*.mlp.weight` for `layers.7.mlp.weight`."""
    return ".".join(numbered(part)[0].replace(NUMBER, "*") for part in name.split("."))


def common_name(names: Sequence[str]) -> str:
    """Return one name for layers of a stack: `layers.{0..11}.mlp.weight`, `{0, 2, 4}`."""
    numbers = zip(*[name.split(".") for name in names], strict=True)
    parts: list[str] = []
    for column in numbers:
        different = list(dict.fromkeys(column))
        if len(different) == 1:
            parts.append(different[0])
        elif len(different) == 2 or _is_range(different):
            if len(different) == 2:
                separator = ", "
            else:
                separator = ".."
            parts.append(f"{{{different[0]}{separator}{different[-1]}}}")
        else:
            parts.append(f"{{{', '.join(different)}}}")
    return ".".join(parts)


def _is_range(parts: Sequence[str]) -> bool:
    if not all(part.isdecimal() for part in parts):
        return False
    first = int(parts[0])
    return [int(part) for part in parts] == list(range(first, first + len(parts)))


def _other_architecture(why: str) -> InputError:
    message = (
        f"base: expected the same architecture as the model, but {why}; build the base with the"
        " same code and smaller sizes"
    )
    return InputError(message, "other-architecture", argument="base")


def _few(names: list[str], most: int = 3) -> str:
    listed = ", ".join(names[:most])
    rest = len(names) - most
    if rest > 0:
        return f"{listed} and {rest} more"
    return listed
