"""Several matrices side by side in one tensor: in absolute mode each counts by itself, as if it had
a tensor of its own.

    y = W x,  W = [W_1; ...; W_m],  fan-out of W_k instead of W

    queries, keys, values    by their names (qkv, c_attn, in_proj, query_key_value). With fewer keys
                             than queries one tensor holds matrices of two sizes, and the queries'
                             counts
    gate and up              by structure: a later neighbour takes a half (or a third) of what the
                             tensor gives, none takes the whole, and the neighbour leads back to
                             where the tensor reads from
    gates of LSTM and GRU    by the module

Rates of the other sizes differ from those of an unpacked network by the root of the ratio: one
tensor has one rate. Biases follow their matrices.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from orderone.observe.inventory import Place
from orderone.planning import names
from orderone.planning.growth import Tensor

GATES = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3}
SIDE_BY_SIDE = (2, 3)  # as structure may tell: gate and up; queries, keys and values


@dataclass(frozen=True)
class _Matrix:
    tensor: Tensor
    place: Place
    into: int
    out: int
    number: int  # in the model's order


def with_parts(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same tensors; those that hold several matrices know the fan-out of one."""
    matrices = list(_matrices(tensors))
    parts = {m.tensor.item.name: _part(m, _neighbours(m, matrices)) for m in matrices}
    beside = {(m.place.module, m.out): parts[m.tensor.item.name] for m in matrices}
    return [replace(t, part=parts.get(t.item.name) or _of_bias(t, beside)) for t in tensors]


def _matrices(tensors: Sequence[Tensor]) -> Iterator[_Matrix]:
    """A tied tensor is the lookup it is."""
    for number, t in enumerate(tensors):
        kinds = {layout.kind: layout for layout in t.layouts}
        if "matrix" in kinds and "lookup" not in kinds:
            layout = kinds["matrix"]
            shape = t.item.shape
            into, out = (
                prod(shape[axis] for axis in axes) for axes in (layout.fan_in, layout.fan_out)
            )
            yield _Matrix(t, t.item.places[0], into, out, number)


def _neighbours(one: _Matrix, matrices: Sequence[_Matrix]) -> list[_Matrix]:
    """Matrices within the module that holds this one, or within that module's parent."""
    if one.place.attribute != "weight":
        inside = one.place.module
    else:
        inside = one.place.module.rpartition(".")[0]
    return [
        m
        for m in matrices
        if m is not one and inside and f"{m.place.module}.".startswith(f"{inside}.")
    ]


def _part(one: _Matrix, neighbours: Sequence[_Matrix]) -> int | None:
    """The fan-out of one of its matrices; None if it is a single one."""
    name = one.tensor.item.name
    if one.place.owner in GATES and one.place.attribute.startswith(("weight_ih", "weight_hh")):
        return one.out // GATES[one.place.owner]
    number = names.packed(name)
    if number == 2:
        return one.out // 2
    if number == 3:
        return _queries(one, neighbours)
    return _like_a_gate(one, neighbours)


def _queries(one: _Matrix, neighbours: Sequence[_Matrix]) -> int | None:
    """What the output of attention takes; keys and values share the rest, and several queries share
    a key."""
    for size in sorted({m.into for m in neighbours} | {one.into}, reverse=True):
        keys, odd = divmod(one.out - size, 2)
        if keys > 0 and not odd and size % keys == 0:
            return size
    return None


def _like_a_gate(one: _Matrix, neighbours: Sequence[_Matrix]) -> int | None:
    if len(one.tensor.item.shape) != 2 or any(m.into == one.out for m in neighbours):
        return None
    back = {m.into for m in neighbours if m.number > one.number and m.out == one.into}
    return next(
        (one.out // n for n in SIDE_BY_SIDE if one.out % n == 0 and one.out // n in back), None
    )


def _of_bias(t: Tensor, beside: Mapping[tuple[str, int], int | None]) -> int | None:
    """Of a vector that is as long as a matrix of the same module."""
    place = t.item.places[0]
    size = prod(t.item.shape)
    if len(t.item.shape) == 1:
        return beside.get((place.module, size))
    return None
