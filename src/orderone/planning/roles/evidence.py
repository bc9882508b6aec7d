"""Evidence about the role of a tensor, and the sizes of a model that are widths.

`Evidence` is one immutable record of everything that is known about a tensor before its role is
resolved: the user's override, its uses in the forward pass, its owning modules, shape and name.

A width is a size that is both produced (a fan-out, the rows of an embedding, a norm) and consumed
(a fan-in). A tensor has two sizes per axis, in the base and in the target, and not every difference
is a width. A lookup selects rows from a vocabulary or a context, and no matrix sums over it. A
number of classes is only produced, a number of input features only consumed. A size may appear in
multiples (queries, keys and values in one tensor; channels times pixels): then it is a width if the
multiple is the same in base and target. A matrix may read several outputs side by side: then its
fan-in is a sum of widths, or widths plus a constant number of input features. In a model without
any such matrix (a dot product of two tables), the sizes that products are summed over are widths.
"""

import fnmatch
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

from orderone.core.errors import InputError, one_of
from orderone.core.roles import ROLES, Role
from orderone.observe.inventory import Item, Layout
from orderone.planning.counterparts import stack_of
from orderone.planning.roles.experts import EXPERT_PART, ROUTER, ExpertPart, Size
from orderone.planning.roles.vocabulary import (
    ATTENTION,
    ATTENTION_PARTS,
    EXPERT,
    HEADS,
    KEYS_VALUES,
    POSITIONS,
    QUERIES_KEYS_VALUES,
    TABLES,
)
from orderone.rules.axes import Growth

OVERRIDES = (*ROLES, Role.FIXED)

ENTRYWISE = frozenset({"vector", "table"})  # layouts without a sum


# --- names ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NameHints:
    """Hints about a tensor from its name."""

    table: bool  # a table of embeddings that is a parameter of the model itself, not of a module
    positional: bool  # positions, or a class token, which occupies a position
    attention: bool
    head: bool  # the module is called a head: `head.weight`, `model.lm_head.weight`
    expert: bool
    packed: int  # number of matrices of attention in one tensor
    attention_part: str | None  # Q, K, V or U


@cache  # asked many times for every tensor
def read_name(name: str) -> NameHints:
    """Return the hints in the name of a tensor."""
    name = name.lower()
    attention = _has_any(name, ATTENTION)
    packed = 1
    if attention and _has_any(name, QUERIES_KEYS_VALUES):
        packed = 3
    elif attention and _has_any(name, KEYS_VALUES):
        packed = 2
    parts = name.split(".")
    return NameHints(
        table=_has_any(name, TABLES),
        positional=_has_any(name, POSITIONS),
        attention=attention,
        head=len(parts) > 1 and parts[-2] in HEADS,
        expert=EXPERT in name,
        packed=packed,
        attention_part=_attention_part(name),
    )


def _attention_part(name: str) -> str | None:
    module = re.sub(r"\.(weight|bias)$", "", name).rpartition(".")[2]
    for part, words in ATTENTION_PARTS.items():
        if module in words:
            return part
    return None


def _has_any(name: str, words: tuple[str, ...]) -> bool:
    return any(word in name for word in words)


# --- tensors --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """Everything that is known about a tensor of the target.

    Sources by strength: override, trace, owning module, shape, name.
    """

    item: Item
    base_shape: tuple[int, ...]  # shape of its counterpart; in absolute mode `item.shape`
    override: Role | None = None  # set by the user
    traced: tuple[Layout, ...] = ()  # uses in the forward pass
    declared: tuple[Layout, ...] = ()  # layouts that the owning modules declare
    named: tuple[Layout, ...] = ()  # in absolute mode: the layout that the name suggests
    is_output: bool = False  # held by a module that is known to be the output layer
    part: int | None = None  # in absolute mode: fan-out of one of several matrices side by side
    siblings: Size = (1, 1)  # number of parallel modules that hold such a tensor
    expert: ExpertPart | None = None  # relative mode: its place in a mixture of experts
    # part of its growth that is the fan-in of the matrix that it writes (a hypernetwork)
    generated: float | None = None
    reads_data: bool | None = None  # a matrix that reads the model's inputs; None: not traced
    # a matrix that makes an output of the model, outside of residual branches; None: not traced
    makes_output: bool | None = None

    @property
    def name(self) -> str:
        return self.item.name

    @cached_property
    def hints(self) -> NameHints:
        """Hints from the name."""
        return read_name(self.item.name)

    @property
    def trace_decides(self) -> bool:
        """Whether the layouts are those of the trace.

        They are if no module declares a layout, or if the forward pass shows a use that no module
        declares: a readout through the embedding's tensor, a matrix used transposed. A tensor with
        one axis counts as a vector only until a product sums over its axis: then it is a matrix
        with one output (a learned query, `hidden @ query`).
        """
        if not self.traced:
            return False
        if not self.declared:
            return True
        if len(self.item.shape) == 1 and all(layout.kind == "matrix" for layout in self.traced):
            return True
        undeclared = set(self.traced) - set(self.declared)
        more = set(self.traced) > set(self.declared)
        return more and any(layout.kind not in ENTRYWISE for layout in undeclared)

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """One layout for every way in which the tensor is used: trace > owning module > name."""
        if self.trace_decides:
            return self.traced
        return self.declared or self.named

    @cached_property
    def kinds(self) -> dict[str, Layout]:
        """The layouts by kind: matrix, lookup, vector."""
        return {layout.kind: layout for layout in self.layouts}

    def first(self, kind: str) -> Layout | None:
        """Return the first layout of a kind."""
        for layout in self.layouts:
            if layout.kind == kind:
                return layout
        return None

    @property
    def only_matrix(self) -> Layout | None:
        """Layout as a matrix; None for a tied tensor, which counts as a lookup."""
        if "lookup" in self.kinds:
            return None
        return self.kinds.get("matrix")

    @property
    def is_router(self) -> bool:
        """Whether it is the router of a mixture of experts: its outputs are not a width."""
        return self.expert is not None and self.expert.kind == ROUTER

    @property
    def is_stack(self) -> bool:
        """Whether it holds one matrix for each expert, along its first axis.

        The matrices of experts lead from one width to another, so they are hidden. A router beside
        them, or the name, has to say that there are experts: the heads of attention look alike in
        a forward pass.
        """
        has_experts = self.hints.expert
        if self.expert is not None:
            has_experts = self.expert.kind == EXPERT_PART and self.expert.axis == 0
        if len(self.item.shape) != 3 or not has_experts:
            return False
        if self.override not in (None, Role.HIDDEN):
            return False
        layout = self.only_matrix
        if layout is None:
            return not self.layouts
        return layout.fan_in in ((1,), (2,))

    @property
    def sizes(self) -> list[Size]:
        """Sizes of all axes, in the base and in the target; 1 for the axis that counts experts."""
        sizes = list(zip(self.base_shape, self.item.shape, strict=True))
        if self.expert is not None and self.expert.axis is not None:
            sizes[self.expert.axis] = (1, 1)
        return sizes

    def over(self, axes: Iterable[int]) -> list[Size]:
        """Return the sizes of some axes, in the base and in the target."""
        return [self.sizes[axis] for axis in axes]

    def together(self, axes: Iterable[int]) -> Size:
        """Return the product of some axes, in the base and in the target."""
        sizes = self.over(axes)
        return prod(base for base, _ in sizes), prod(target for _, target in sizes)

    def with_siblings(self, axes: Iterable[int]) -> Size:
        """Return the size of some axes in all parallel modules together."""
        base, target = self.together(axes)
        return self.siblings[0] * base, self.siblings[1] * target

    def product(self, axes: Iterable[int]) -> int:
        """Return the product of some axes of the target, without the axis that counts experts."""
        return prod(size for _, size in self.over(axes))

    @property
    def fans(self) -> tuple[int, int]:
        """Fan-in and fan-out in the target; for packed matrices, those of one of them."""
        shape = self.item.shape
        layout = self.first("matrix")
        if layout is None or "lookup" in self.kinds:
            return 1, self.part or (shape[-1] if shape else 1)
        fan_in = 1
        fan_out = 1
        for axis, size in enumerate(shape):
            if axis in layout.fan_out:
                fan_out *= size
            else:
                fan_in *= size  # the axes of a kernel are summed over
        return fan_in, self.part or fan_out


def declared_layouts(item: Item) -> tuple[Layout, ...]:
    """Return the layouts that the owning modules of a tensor declare."""
    return tuple(dict.fromkeys(place.layout for place in item.places if place.layout))


def read_overrides(overrides: Mapping[str, str], names: Sequence[str]) -> dict[str, Role]:
    """Return the overridden role of every tensor that a pattern matches."""
    result: dict[str, Role] = {}
    for pattern, role_name in overrides.items():
        role = Role(one_of(role_name, OVERRIDES, f"role in overrides[{pattern!r}]"))
        matching = fnmatch.filter(names, pattern)
        if not matching:
            message = (
                f"overrides: no tensor matches {pattern!r}; the model has {names[0]}, ...,"
                f" {names[-1]}"
            )
            raise InputError(message, "unknown-name", argument="overrides")
        result |= dict.fromkeys(matching, role)
    return result


def data_readers(tensors: Iterable[Evidence]) -> set[str]:
    """Return the matrices that read the inputs of the model, not the output of other matrices.

    The forward pass shows them. Without one, it is the first matrix, if no lookup comes before it;
    a table of positions does not count as a lookup.
    """
    readers: set[str] = set()
    is_first = True
    for evidence in tensors:
        if evidence.only_matrix is not None:
            if evidence.reads_data or (is_first and evidence.reads_data is None):
                readers.add(evidence.name)
            is_first = False
        elif "lookup" in evidence.kinds and not evidence.hints.positional:
            is_first = False
    return readers


# --- widths ---------------------------------------------------------------------------------------


class Widths:
    """The sizes of a model that are widths, and words for those that are not."""

    def __init__(self, tensors: Iterable[Evidence], summed: Iterable[Size] = ()):
        self.tensors: list[Evidence] = list(tensors)
        self.summed: frozenset[Size] = frozenset(summed)  # by products of activations

    @cached_property
    def picked(self) -> set[Size]:
        """Sizes that a lookup selects from: vocabularies and contexts."""
        return self._sizes("lookup", "fan_in")

    @cached_property
    def consumed(self) -> set[Size]:
        """Sizes that a matrix sums over."""
        return self._sizes("matrix", "fan_in") | self._unknown

    @cached_property
    def consumed_inside(self) -> set[Size]:
        """Sizes that a matrix sums over which does not read the inputs of the model."""
        readers = data_readers(self.tensors)
        inner = [evidence for evidence in self.tensors if evidence.name not in readers]
        return Widths(inner).consumed

    @cached_property
    def produced(self) -> set[Size]:
        """Sizes of the outputs of a tensor."""
        vectors: set[Size] = set()
        for evidence in self.tensors:
            if not ENTRYWISE.isdisjoint(evidence.kinds):
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
                    if side == "fan_in":
                        axes = layout.fan_in
                    else:
                        axes = layout.fan_out
                    result.update(evidence.over(axes))
        return result

    @cached_property
    def passed_on(self) -> set[Size]:
        """Sizes that grew and are both consumed and produced, maybe in a multiple."""
        produced = self.produced - (self.picked - self.consumed)
        result: set[Size] = set()
        for size in self.consumed:
            if _grew(size) and any(commensurate(size, other) for other in produced):
                result.add(size)
        if not result:  # a dot product of tables, without a matrix
            result = {size for size in self.summed & produced if _grew(size)}
        return result

    @cached_property
    def certain(self) -> set[Size]:
        """Sizes that are certainly widths."""
        repeated = {size for size in self._repeated - self.picked if _grew(size)}
        return self.named | repeated | self._outer_products | self._sums.keys()

    @cached_property
    def named(self) -> set[Size]:
        """Sizes that a plan names as its widths: a sum of widths is left out, its parts are not."""
        return self.passed_on.union(*self._sums.values())

    @cached_property
    def _sums(self) -> dict[Size, set[Size]]:
        """Fan-ins that are outputs side by side, with the sizes of these outputs.

        A matrix reads the sum of two widths, or a multiple of a width and a constant number of
        input features beside it (PointNet++, skip connections from the input).
        """
        grown = sorted(size for size in self.produced - self.picked if _grew(size))
        pairs: dict[Size, set[Size]] = {}
        for one, other in itertools.combinations(grown, 2):
            pairs.setdefault((one[0] + other[0], one[1] + other[1]), set()).update((one, other))
        result: dict[Size, set[Size]] = {}
        for size in self.consumed - self.passed_on:
            parts = pairs.get(size, set()) | {width for width in grown if _affine(size, width)}
            if parts:
                result[size] = parts
        return result

    @cached_property
    def _outer_products(self) -> set[Size]:
        """Sizes of outer products that a matrix reads, and of their factors."""
        grown = {size for size in self.produced - self.picked if _grew(size) and min(size) > 0}
        result: set[Size] = set()
        for size in self.consumed - self.produced:
            for factor in grown:
                other, remainder = divmod(size[0], factor[0])
                product = (other, size[1] // factor[1])
                if not remainder and product in grown and size[1] % factor[1] == 0:
                    result |= {size, factor}
        return result

    def is_product(self, size: Size) -> bool:
        """Return whether a size grew like a product of two widths and is none itself."""
        if not _grew(size) or self.is_width(size):
            return False
        ratio = size[1] / size[0]
        ratios = {target / base for base, target in self.certain}
        return any(math.isclose(ratio, one * other) for one in ratios for other in ratios)

    @cached_property
    def _repeated(self) -> set[Size]:
        """Fan-outs that all layers of a stack share.

        A matrix inside a layer is not the output, even if no other tensor has its fan-out: keys and
        values may grow by another ratio.
        """
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
        return result

    def is_width(self, size: Size) -> bool:
        """Return whether this size grew as a width."""
        if not _grew(size):
            return False
        if size in self.picked and size not in self.consumed:
            return False
        return any(commensurate(size, width) or _affine(size, width) for width in self.certain)

    def among(self, sizes: Iterable[Size]) -> list[Size]:
        """Return the widths among these sizes."""
        return [size for size in sizes if self.is_width(size)]

    def growth(self, evidence: Evidence, axes: Iterable[int]) -> float:
        """Return the growth of some axes of a tensor.

        The outputs of parallel modules may form a width together: heads of constant size, whose
        number grows.
        """
        axes = list(axes)
        ratio = self.ratio(evidence.over(axes))
        together = evidence.with_siblings(axes)
        if ratio == 1 and evidence.siblings != (1, 1) and self.is_width(together):
            return together[1] / together[0]
        return ratio

    def growth_alone(self, evidence: Evidence) -> Growth:
        """Return the growth of a matrix, without the parallel ones beside it."""
        layout = evidence.only_matrix
        if layout is None:
            return Growth()
        fan_in = self.ratio(evidence.over(layout.fan_in))
        return Growth(fan_in, self.ratio(evidence.over(layout.fan_out)))

    def ratio(self, sizes: Iterable[Size]) -> float:
        """Return the growth of the widths among these sizes, multiplied together."""
        result = 1.0
        for base, target in self.among(sizes):
            result *= target / base
        return result

    def word_for(self, size: Size) -> str:
        """Return the word for a size that differs and is not a width."""
        if size in self.picked:
            return "vocabulary or context"
        if size in self.produced:
            return "outputs"
        if size in self.consumed:
            return "inputs"
        return "another size"


def _in_a_layer(stack: str) -> bool:
    """Return whether a name belongs to a layer, even a single one.

    `layers.*.attention.keys.weight` does; `classifier.*.weight` may be the output.
    """
    return stack.count(".", stack.find("*")) > 2


def _grew(size: Size) -> bool:
    return size[0] != size[1]


def commensurate(one: Size, other: Size) -> bool:
    """Return whether two sizes grew by the same ratio, and one is a multiple of the other."""
    if one[0] * other[1] != one[1] * other[0]:
        return False
    small, large = sorted((one[0], other[0]))
    return small > 0 and large % small == 0  # an axis may be empty


def _affine(size: Size, width: Size) -> bool:
    """Return whether a size is a multiple of a width plus a constant.

    In multi-query attention, all queries are packed with one key and one value.
    """
    grown = size[1] - size[0]
    step = width[1] - width[0]
    return grown % step == 0 and grown // step > 0 and size[0] > grown // step * width[0]
