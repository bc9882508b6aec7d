"""Which sizes are widths. A tensor shows two sizes per axis, base and target; not every difference
is a width.

A width is both produced (a fan-out, an embedding's rows, a norm) and consumed (a fan-in). A
vocabulary or context length is picked from by a lookup and summed over by nobody; a number of
classes is produced only, a number of input features consumed only. A size may appear in multiples
(query, key and value packed; channels times pixels): then it is a width where the multiple is the
same in base and target.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mode

from orderone.core.roles import Role
from orderone.planning.counterparts import stack_of
from orderone.planning.roles.evidence import Evidence, Size


class Widths:
    """The sizes of a model that are widths, and why others are not."""

    def __init__(self, tensors: Iterable[Evidence]):
        self.tensors: list[Evidence] = list(tensors)

    @cached_property
    def picked(self) -> set[Size]:
        """Sizes that a lookup picks from: vocabularies and contexts."""
        return self._sizes("lookup", "fan_in")

    @cached_property
    def experts(self) -> set[Size]:
        """Numbers of experts: the first axis of tensors that all experts share."""
        result: set[Size] = set()
        for evidence in self.tensors:
            if evidence.hints.expert and len(evidence.sizes) == 3:
                result.add(evidence.sizes[0])
        return result

    @cached_property
    def consumed(self) -> set[Size]:
        """Sizes that a matrix sums over."""
        return self._sizes("matrix", "fan_in") | self._unknown

    @cached_property
    def produced(self) -> set[Size]:
        """Sizes that some tensor gives out."""
        vectors: set[Size] = set()
        for evidence in self.tensors:
            if "vector" in evidence.kinds:
                vectors.update(evidence.sizes)
        outputs = self._sizes("matrix", "fan_out") | self._sizes("lookup", "fan_out")
        return outputs | vectors | self._unknown

    @cached_property
    def _unknown(self) -> set[Size]:
        """Sizes of tensors of unknown layout, which may be produced or consumed."""
        result: set[Size] = set()
        for evidence in self.tensors:
            if not evidence.layouts:
                result.update(evidence.sizes)
        return result

    def _sizes(self, kind: str, side: str) -> set[Size]:
        result: set[Size] = set()
        for evidence in self.tensors:
            for layout in evidence.layouts:
                if layout.kind == kind:
                    axes = layout.fan_in if side == "fan_in" else layout.fan_out
                    result.update(evidence.over(axes))
        return result

    @cached_property
    def passed_on(self) -> set[Size]:
        """Sizes that grew and are consumed as something else produces them, or in a multiple."""
        produced = self.produced - (self.picked - self.consumed)
        result: set[Size] = set()
        for size in self.consumed:
            if _grew(size) and any(commensurate(size, other) for other in produced):
                result.add(size)
        return result

    @cached_property
    def certain(self) -> set[Size]:
        """Sizes that are widths without doubt."""
        repeated = {size for size in self._repeated - self.picked if _grew(size)}
        return self.passed_on | repeated

    @cached_property
    def _repeated(self) -> set[Size]:
        """Fan-outs that every layer of a stack has. Layers are no outputs: keys and values may grow
        by a ratio of their own."""
        stacks: dict[str, list[list[Size]]] = {}
        for evidence in self.tensors:
            for layout in evidence.layouts:
                if layout.kind == "matrix":
                    fan_outs = stacks.setdefault(stack_of(evidence.name), [])
                    fan_outs.append(evidence.over(layout.fan_out))
        result: set[Size] = set()
        for stack, fan_outs in stacks.items():
            is_layer = len(fan_outs) > 1 or _in_a_layer(stack)
            if is_layer and all(sizes == fan_outs[0] for sizes in fan_outs):
                result.update(fan_outs[0])
        return result - self.experts

    def is_width(self, size: Size) -> bool:
        """Whether this size grew, and grew as a width."""
        if not _grew(size):
            return False
        if size in self.picked | self.experts and size not in self.consumed:
            return False
        return any(commensurate(size, width) or _affine(size, width) for width in self.certain)

    def among(self, sizes: Iterable[Size]) -> list[Size]:
        """Return the widths among these sizes."""
        return [size for size in sizes if self.is_width(size)]

    def ratio(self, sizes: Iterable[Size]) -> float:
        """Return the growth of the widths among these sizes, multiplied together."""
        result = 1.0
        for base, target in self.among(sizes):
            result *= target / base
        return result

    def word_for(self, size: Size) -> str:
        """Return the word for a size that differs and is no width."""
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
    """Whether two sizes grew alike, and one is a multiple of the other."""
    if one[0] * other[1] != one[1] * other[0]:
        return False
    small, large = sorted((one[0], other[0]))
    return large % small == 0


def _affine(size: Size, width: Size) -> bool:
    """Whether a size is some widths and a rest that stays: all queries packed with the one key and
    value of multi-query attention."""
    grown = size[1] - size[0]
    step = width[1] - width[0]
    return grown % step == 0 and grown // step > 0 and size[0] > grown // step * width[0]


# --- a model without a base -----------------------------------------------------------------------


def structural_widths(tensors: Sequence[Evidence]) -> set[int]:
    """Return the sizes that one tensor gives and a matrix takes."""
    consumed: set[int] = set()
    produced: set[int] = set()
    for evidence in tensors:
        matrix = evidence.only_matrix
        lookup = evidence.kinds.get("lookup")
        if matrix is not None:
            consumed.add(evidence.product(matrix.fan_in))
            produced.add(evidence.product(matrix.fan_out))
        if lookup is not None:
            produced.add(evidence.product(lookup.fan_out))
        if evidence.part:
            produced.add(evidence.part)
    return consumed & produced


def residual_width(tensors: Sequence[Evidence], roles: Mapping[str, Role]) -> int | None:
    """Return the width of the residual stream: the commonest size of hidden matrices."""
    sizes = list(_hidden_sizes(tensors, roles))
    if sizes:
        return mode(sizes)
    return None


def _hidden_sizes(tensors: Sequence[Evidence], roles: Mapping[str, Role]) -> Iterator[int]:
    for evidence in tensors:
        if roles[evidence.name] == Role.HIDDEN:
            yield from evidence.fans


@dataclass(frozen=True)
class Streams:
    """Widths that tensors write to: that of the residual stream, and those of tables that are
    narrower (ALBERT, OPT)."""

    residual: int | None
    tables: frozenset[int]

    @classmethod
    def of(cls, tensors: Sequence[Evidence], roles: Mapping[str, Role]) -> "Streams":
        """Gather the streams of a model."""
        tables = {evidence.fans[1] for evidence in tensors if "lookup" in evidence.kinds}
        return cls(residual_width(tensors, roles), frozenset(tables))

    def width(self, fan_out: int) -> int | None:
        """Return the n of a tensor with this fan-out, in the powers of S2: its table's, and
        elsewhere the residual stream's."""
        if fan_out in self.tables:
            return fan_out
        return self.residual
