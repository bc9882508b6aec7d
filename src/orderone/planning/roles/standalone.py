"""Roles and groups of the tensors of a model without a base (absolute mode).

Several matrices may lie side by side in one tensor. In absolute mode each counts by itself, as if
it were a separate tensor: `with_parts` adds the fan-out of one of them to the evidence.

    y = W x,  W = [W_1; ...; W_m],  fan-out of W_k instead of W

    queries, keys, values    by their names (qkv, c_attn, in_proj, query_key_value). With fewer keys
                             than queries one tensor holds matrices of two sizes; the size of the
                             queries counts
    gate and up              by structure: the fan-in of a later neighbour is a half (or a third) of
                             the fan-out, no neighbour has the whole fan-out as fan-in, and the
                             fan-out of that neighbour is the fan-in of the tensor
    gates of LSTM and GRU    by the module

A packed tensor has one learning rate, that of its queries. For keys and values it is off by the
square root of the ratio of sizes. Biases follow their matrices.

The last part has the groups of S2, "Effective Theory of Transformers at Initialization" (patch, WE,
PE, QKVU, W, X, head), and the widths that tensors write to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orderone.core.roles import Role
from orderone.observe.inventory import Item, Layout, Place, lookup
from orderone.planning.roles.evidence import ENTRYWISE, Evidence, read_name
from orderone.planning.roles.structure import (
    Candidates,
    group_of,
    residual_width,
    structural_candidates,
    structural_roles,
)
from orderone.planning.roles.vocabulary import GATES

SIDE_BY_SIDE = (2, 3)  # gate and up; queries, keys and values


# --- roles ----------------------------------------------------------------------------------------


def standalone_roles(tensors: Sequence[Evidence]) -> dict[str, Role]:
    """Return the role of every tensor of a model without a base: override > structure."""
    roles = structural_roles(tensors)
    for evidence in tensors:
        if evidence.override is not None:
            roles[evidence.name] = evidence.override
    return roles


def roles_at_all_sizes(
    known: Mapping[str, Role], target: Sequence[Evidence], base: Sequence[Evidence]
) -> dict[str, Candidates]:
    """Return the roles of every tensor relative to its base and by structure at both sizes.

    `known` are the roles where a dimension grows: relative to a base of the same size no tensor has
    one, but settings per role need a role that does not depend on the size. The roles agree except
    where the structure is ambiguous. An override is the role at all sizes.
    """
    by_structure = [_structure(target), _structure(base)]
    roles: dict[str, Candidates] = {}
    for evidence in target:
        name = evidence.name
        if evidence.override is not None:
            roles[name] = (evidence.override,)
            continue
        candidates: list[Role] = []
        if name in known:
            candidates.append(known[name])
        for roles_of_size in by_structure:
            candidates += decided(roles_of_size[name], known.get(name))
        roles[name] = tuple(dict.fromkeys(candidates))
    return roles


def decided(candidates: Candidates, known: Role | None) -> Candidates:
    """Return the candidates of one size, or the known role if it is one of them."""
    if known is not None and known in candidates:
        return (known,)
    return candidates


def _structure(tensors: Sequence[Evidence]) -> dict[str, Candidates]:
    named: list[Evidence] = []
    for evidence in tensors:
        named.append(replace(evidence, named=named_layouts(evidence.item)))
    roles = structural_candidates(with_parts(named))
    for evidence in tensors:
        if learned_table(evidence) is not None:
            roles[evidence.name] = (Role.EMBEDDING,)
    return roles


def named_layouts(item: Item) -> tuple[Layout, ...]:
    """Return the layout of a table that is a parameter of the model itself.

    It is recognised by its name; its last axis is the width.
    """
    long = [axis for axis, size in enumerate(item.shape) if size > 1]
    is_pair = len(long) == 2 and long[-1] == len(item.shape) - 1
    if is_pair and read_name(item.name).table:
        return (lookup(*long),)
    return ()


def learned_table(evidence: Evidence) -> Layout | None:
    """Return the layout of a table of positions or tokens that is a parameter of the model itself.

    The forward pass adds it to activations, or joins it to them as tokens; or its name says so. A
    bias has one entry per channel, and experts may have one each; a table has one row per position.
    """
    if evidence.name.endswith("bias") or not ENTRYWISE.issuperset(evidence.kinds):
        return None
    named = named_layouts(evidence.item)
    if named:
        return named[0]
    long = [axis for axis, size in enumerate(evidence.sizes) if size[1] > 1]
    if set(evidence.kinds) == {"table"} and len(long) > 1:
        return lookup(long[0], long[-1])
    return None


# --- matrices side by side ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Matrix:
    evidence: Evidence
    place: Place
    fan_in: int
    fan_out: int
    number: int  # in the model's order


def with_parts(tensors: Sequence[Evidence]) -> list[Evidence]:
    """Return the tensors with `part`, the fan-out of one matrix, where several are packed."""
    matrices = _matrices(tensors)
    inside = _by_container(matrices)
    parts: dict[str, int | None] = {}
    bias_parts: dict[tuple[str, int], int | None] = {}
    for matrix in matrices:
        part = _part(matrix, _neighbours(matrix, inside))
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


def _by_container(matrices: Sequence[_Matrix]) -> dict[str, list[_Matrix]]:
    """Return the matrices within every module, by its name, in the model's order."""
    inside: dict[str, list[_Matrix]] = {}
    for matrix in matrices:
        container = matrix.place.module
        while container:
            inside.setdefault(container, []).append(matrix)
            container = container.rpartition(".")[0]
    return inside


def _neighbours(matrix: _Matrix, inside: Mapping[str, Sequence[_Matrix]]) -> list[_Matrix]:
    """Return the matrices within the module that holds this one, or within that module's parent."""
    container = matrix.place.module
    if matrix.place.attribute == "weight":
        container = container.rpartition(".")[0]
    return [other for other in inside.get(container, ()) if other is not matrix]


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
    """Return the size of the queries: the fan-in of the output of attention.

    Keys and values have equal parts of the rest; several queries may share a key.
    """
    candidates = {other.fan_in for other in neighbours} | {matrix.fan_in}
    for size in sorted(candidates, reverse=True):
        keys, remainder = divmod(matrix.fan_out - size, 2)
        if keys > 0 and not remainder and size % keys == 0:
            return size
    return None


def _gate(matrix: _Matrix, neighbours: Sequence[_Matrix]) -> int | None:
    """Return the size of a gate that is packed with its values."""
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


# --- groups of S2 ---------------------------------------------------------------------------------


def groups_of(tensors: Sequence[Evidence], roles: Mapping[str, Role]) -> dict[str, str]:
    """Return the group of every tensor; the bias of a readout is head_bias."""
    heads: set[str] = set()
    for evidence in tensors:
        for place in readout_places(evidence, roles[evidence.name]):
            heads.add(place.module)
    width = residual_width(tensors, roles)
    groups: dict[str, str] = {}
    for evidence in tensors:
        role = roles[evidence.name]
        beside_head = not heads.isdisjoint(evidence.item.modules)
        if role == Role.VECTOR and beside_head:
            groups[evidence.name] = "head_bias"
        else:
            groups[evidence.name] = group_of(evidence, role, width)
    return groups


def readout_places(evidence: Evidence, role: Role) -> list[Place]:
    """Return the places where the tensor is the readout; for a tied tensor, those of a matrix."""
    if role != Role.READOUT and len(evidence.kinds) < 2:
        return []
    places = evidence.item.places
    return [place for place in places if place.layout and place.layout.kind == "matrix"]


@dataclass(frozen=True)
class Streams:
    """Widths that tensors write to: the residual stream, and narrower tables (ALBERT, OPT)."""

    residual: int | None
    tables: frozenset[int]

    def width(self, fan_out: int) -> int | None:
        """Return the width n in the powers of S2 for a tensor with this fan-out."""
        if fan_out in self.tables:
            return fan_out
        return self.residual


def streams_of(tensors: Sequence[Evidence], roles: Mapping[str, Role]) -> Streams:
    """Return the streams of a model."""
    tables = {evidence.fans[1] for evidence in tensors if "lookup" in evidence.kinds}
    return Streams(residual_width(tensors, roles), frozenset(tables))
