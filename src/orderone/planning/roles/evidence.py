"""One immutable record of everything that is known about a tensor, before its role is resolved.

Several matrices may lie side by side in one tensor. In absolute mode each counts by itself, as if
it had a tensor of its own: `with_parts` adds the fan-out of one of them to the evidence.

    y = W x,  W = [W_1; ...; W_m],  fan-out of W_k instead of W

    queries, keys, values    by their names (qkv, c_attn, in_proj, query_key_value). With fewer keys
                             than queries one tensor holds matrices of two sizes, and the queries'
                             counts
    gate and up              by structure: a later neighbour takes a half (or a third) of what the
                             tensor gives, none takes the whole, and the neighbour leads back to
                             where the tensor reads from
    gates of LSTM and GRU    by the module

Learning rates of the other sizes differ from those of an unpacked network by the root of the ratio:
one tensor has one learning rate. Biases follow their matrices.
"""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from orderone.core.errors import one_of
from orderone.core.roles import ROLES, Role
from orderone.observe.inventory import Item, Place
from orderone.observe.layouts import Layout
from orderone.planning.roles.vocabulary import GATES, NameHints, read_name

OVERRIDES = (*ROLES, Role.FIXED)
SIDE_BY_SIDE = (2, 3)  # as structure may tell: gate and up; queries, keys and values

Size = tuple[int, int]  # base, target


@dataclass(frozen=True)
class Evidence:
    """What is known about a tensor of the target, strongest first: override, trace, owning module,
    shape, name."""

    item: Item
    base_shape: tuple[int, ...]  # of its counterpart; in absolute mode its own shape
    override: Role | None = None  # the user's word
    traced: tuple[Layout, ...] = ()  # uses in the forward pass
    declared: tuple[Layout, ...] = ()  # layouts that the owning modules declare
    named: tuple[Layout, ...] = ()  # in absolute mode: the layout that the name suggests
    is_output: bool = False  # held by a module that is known to be the output layer
    part: int | None = None  # in absolute mode: fan-out of one of several matrices side by side

    @property
    def name(self) -> str:
        return self.item.name

    @cached_property
    def hints(self) -> NameHints:
        """What the name suggests."""
        return read_name(self.item.name)

    @property
    def trace_decides(self) -> bool:
        """Whether the trace tells the layouts: no module declares any, or the forward pass shows a
        use that none declares (a readout through the embedding's tensor, a matrix used
        transposed)."""
        if not self.traced:
            return False
        if not self.declared:
            return True
        undeclared = set(self.traced) - set(self.declared)
        more = set(self.traced) > set(self.declared)
        return more and any(layout.kind != "vector" for layout in undeclared)

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
        """Its layout as a matrix; None for a tied tensor, which counts as the lookup it is."""
        if "lookup" in self.kinds:
            return None
        return self.kinds.get("matrix")

    @property
    def sizes(self) -> list[Size]:
        """Sizes of all axes, in the base and in the target."""
        return list(zip(self.base_shape, self.item.shape, strict=True))

    def over(self, axes: Iterable[int]) -> list[Size]:
        """Return the sizes of some axes, in the base and in the target."""
        return [self.sizes[axis] for axis in axes]

    def product(self, axes: Iterable[int]) -> int:
        """Return the product of some axes of the target."""
        return prod(self.item.shape[axis] for axis in axes)

    @property
    def fans(self) -> tuple[int, int]:
        """Fan-in and fan-out of the target; of matrices side by side, those of one of them."""
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
            raise ValueError(
                f"overrides: no tensor is called {pattern!r}; the model has {names[0]}, ...,"
                f" {names[-1]}"
            )
        result |= dict.fromkeys(matching, role)
    return result


# --- matrices side by side ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Matrix:
    evidence: Evidence
    place: Place
    fan_in: int
    fan_out: int
    number: int  # in the model's order


def with_parts(tensors: Sequence[Evidence]) -> list[Evidence]:
    """Return the same tensors; those that hold several matrices know the fan-out of one."""
    matrices = _matrices(tensors)
    parts: dict[str, int | None] = {}
    bias_parts: dict[tuple[str, int], int | None] = {}
    for matrix in matrices:
        part = _part(matrix, _neighbours(matrix, matrices))
        parts[matrix.evidence.name] = part
        bias_parts[matrix.place.module, matrix.fan_out] = part
    result: list[Evidence] = []
    for evidence in tensors:
        part = parts.get(evidence.name)
        if not part and len(evidence.item.shape) == 1:
            # a vector as long as a matrix of the same module is its bias
            part = bias_parts.get((evidence.item.places[0].module, evidence.item.shape[0]))
        result.append(replace(evidence, part=part))
    return result


def _matrices(tensors: Sequence[Evidence]) -> list[_Matrix]:
    result: list[_Matrix] = []
    for number, evidence in enumerate(tensors):
        layout = evidence.only_matrix
        if layout is None:
            continue
        fan_in = evidence.product(layout.fan_in)
        fan_out = evidence.product(layout.fan_out)
        result.append(_Matrix(evidence, evidence.item.places[0], fan_in, fan_out, number))
    return result


def _neighbours(matrix: _Matrix, matrices: Sequence[_Matrix]) -> list[_Matrix]:
    """Return the matrices within the module that holds this one, or within that module's parent."""
    container = matrix.place.module
    if matrix.place.attribute == "weight":
        container = container.rpartition(".")[0]
    if not container:
        return []
    result: list[_Matrix] = []
    for other in matrices:
        inside = f"{other.place.module}.".startswith(f"{container}.")
        if inside and other is not matrix:
            result.append(other)
    return result


def _part(matrix: _Matrix, neighbours: Sequence[_Matrix]) -> int | None:
    """Return the fan-out of one of the matrices in a tensor; None if it is a single one."""
    place = matrix.place
    if place.owner in GATES and place.attribute.startswith(("weight_ih", "weight_hh")):
        return matrix.fan_out // GATES[place.owner]
    packed = matrix.evidence.hints.packed
    if packed == 2:
        return matrix.fan_out // 2
    if packed == 3:
        return _queries(matrix, neighbours)
    return _gate(matrix, neighbours)


def _queries(matrix: _Matrix, neighbours: Sequence[_Matrix]) -> int | None:
    """Return the size of the queries: what the output of attention takes. Keys and values share the
    rest, and several queries share a key."""
    candidates = {other.fan_in for other in neighbours} | {matrix.fan_in}
    for size in sorted(candidates, reverse=True):
        keys, remainder = divmod(matrix.fan_out - size, 2)
        if keys > 0 and not remainder and size % keys == 0:
            return size
    return None


def _gate(matrix: _Matrix, neighbours: Sequence[_Matrix]) -> int | None:
    """Return the size of a gate beside its values."""
    if len(matrix.evidence.item.shape) != 2:
        return None
    leads_back: set[int] = set()
    for other in neighbours:
        if other.fan_in == matrix.fan_out:
            return None
        if other.number > matrix.number and other.fan_out == matrix.fan_in:
            leads_back.add(other.fan_in)
    for count in SIDE_BY_SIDE:
        size, remainder = divmod(matrix.fan_out, count)
        if remainder == 0 and size in leads_back:
            return size
    return None
