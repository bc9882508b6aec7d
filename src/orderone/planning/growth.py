"""Which dimensions are widths. A tensor shows two sizes per axis, base and target; not every
difference is a width.

A width is both produced (a fan-out, an embedding's rows, a norm) and consumed (a fan-in). A
vocabulary or context length is picked from by a lookup and summed over by nobody; a number of
classes is produced only, a number of input features consumed only. A size may appear in multiples
(query, key and value packed; channels times pixels): then it is a width where the multiple is the
same in base and target.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from orderone.observe.inventory import Item
from orderone.observe.layouts import Layout
from orderone.planning.counterparts import stack_of

Size = tuple[int, int]  # base, target


@dataclass(frozen=True)
class Tensor:
    """A tensor of the target beside its counterpart, with its layouts: one for every way it is
    used."""

    item: Item
    base_shape: tuple[int, ...]
    layouts: tuple[Layout, ...]
    part: int | None = None  # in absolute mode: the fan-out of one of several matrices side by side

    @property
    def sizes(self) -> list[Size]:
        return list(zip(self.base_shape, self.item.shape, strict=True))

    def over(self, axes: Iterable[int]) -> list[Size]:
        return [self.sizes[axis] for axis in axes]


class Widths:
    """The sizes of a model that are widths, and why others are not."""

    def __init__(self, tensors: Iterable[Tensor]):
        self.tensors = list(tensors)

    @cached_property
    def picked(self) -> set[Size]:
        return self._sizes("lookup", "fan_in")

    @cached_property
    def experts(self) -> set[Size]:
        """Numbers of experts: the first axis of what they own together, and the outputs of their
        router."""
        return {
            t.sizes[0]
            for t in self.tensors
            if len(t.sizes) == 3 and "expert" in t.item.name.lower()
        }

    @cached_property
    def consumed(self) -> set[Size]:
        return self._sizes("matrix", "fan_in") | self._unknown

    @cached_property
    def produced(self) -> set[Size]:
        vectors = {
            size
            for t in self.tensors
            for layout in t.layouts
            if layout.kind == "vector"
            for size in t.sizes
        }
        return (
            self._sizes("matrix", "fan_out")
            | self._sizes("lookup", "fan_out")
            | vectors
            | self._unknown
        )

    @cached_property
    def _unknown(self) -> set[Size]:
        """Tensors of unknown layout may do either."""
        return {size for t in self.tensors if not t.layouts for size in t.sizes}

    def _sizes(self, kind: str, side: str) -> set[Size]:
        return {
            size
            for t in self.tensors
            for layout in t.layouts
            if layout.kind == kind
            for size in t.over(getattr(layout, side))
        }

    @cached_property
    def passed_on(self) -> set[Size]:
        """Consumed in the form in which, or in a multiple of which, something else produces it."""
        produced = self.produced - (self.picked - self.consumed)
        return {c for c in self.consumed if _grew(c) and any(commensurate(c, p) for p in produced)}

    @cached_property
    def certain(self) -> set[Size]:
        return self.passed_on | {size for size in self._repeated - self.picked if _grew(size)}

    @cached_property
    def _repeated(self) -> set[Size]:
        """What every layer of a stack puts out. Layers are no outputs: keys and values may grow by
        a ratio of their own."""
        stacks: dict[str, list[list[Size]]] = {}
        for t in self.tensors:
            for layout in t.layouts:
                if layout.kind == "matrix":
                    stacks.setdefault(stack_of(t.item.name), []).append(t.over(layout.fan_out))
        alike = [
            sizes
            for stack, sizes in stacks.items()
            if (len(sizes) > 1 or _in_a_layer(stack)) and all(s == sizes[0] for s in sizes)
        ]
        return {size for sizes in alike for size in sizes[0]} - self.experts

    def is_width(self, size: Size) -> bool:
        """Did this size grow, and as a width?"""
        if not _grew(size) or (size in self.picked | self.experts and size not in self.consumed):
            return False
        return any(commensurate(size, width) or _affine(size, width) for width in self.certain)

    def ratio(self, sizes: Iterable[Size]) -> float:
        result = 1.0
        for base, target in sizes:
            if self.is_width((base, target)):
                result *= target / base
        return result

    def what(self, size: Size) -> str:
        """The word for a size that differs and is no width."""
        if size in self.picked:
            return "vocabulary or context"
        if size in self.experts:
            return "experts"
        if size in self.produced:
            return "outputs"
        if size in self.consumed:
            return "inputs"
        return "another size"


def _in_a_layer(stack: str) -> bool:
    """`layers.*.attention.keys.weight`, even of a single layer; `classifier.*.weight` may be the
    output."""
    return stack.count(".", stack.find("*")) > 2


def _grew(size: Size) -> bool:
    return size[0] != size[1]


def commensurate(one: Size, other: Size) -> bool:
    """The same growth, and one a multiple of the other."""
    if one[0] * other[1] != one[1] * other[0]:
        return False
    small, large = sorted((one[0], other[0]))
    return large % small == 0


def _affine(size: Size, width: Size) -> bool:
    """Some widths and a rest that stays: all queries packed with the one key and value of
    multi-query attention."""
    grown = size[1] - size[0]
    step = width[1] - width[0]
    return grown % step == 0 and grown // step > 0 and size[0] > grown // step * width[0]
