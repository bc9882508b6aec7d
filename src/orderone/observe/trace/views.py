"""Parameters seen through views and copies: along which axes of a parameter the dimensions of a
tensor run."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from orderone.observe.trace.steps import Dims, Operation, Value, Weights
from orderone.torch_compat import storage_id, tree_leaves


def seen_through(view: Tensor, owner: Value) -> Weights:
    """The axes that each dimension of `view` runs along, by its strides in the memory of
    `owner`."""
    spans = [_span(view.shape[d], view.stride(d), owner.tensor) for d in range(view.ndim)]
    return {
        name: None
        if dims is None
        else tuple(tuple(axis for d in span for axis in dims[d]) for span in spans)
        for name, dims in owner.weights.items()
    }


def _span(size: int, stride: int, owner: Tensor) -> list[int]:
    """The dimensions of `owner` that a dimension of a view lies in (a part of one) or covers
    (merged ones)."""
    if size == 1 or stride == 0:
        return []
    own = [
        (d, owner.stride(d), owner.stride(d) * owner.shape[d])
        for d in range(owner.ndim)
        if owner.shape[d] > 1
    ]
    return [d for d, start, end in own if start <= stride < end or stride <= start < stride * size]


def derived(operation: Operation, tensor: Tensor, owner: Value | None) -> Weights:
    """The parameters in a tensor that is made of parameters alone."""
    found: Weights = {}
    for value in operation.live:
        for name, dims in _carried(operation, value, tensor, owner).items():
            found[name] = found.get(name) or dims
    return found


def _carried(operation: Operation, value: Value, tensor: Tensor, owner: Value | None) -> Weights:
    order = _order(operation, value.tensor.ndim)
    if order is not None:
        return {
            name: dims and tuple(dims[d] for d in order) for name, dims in value.weights.items()
        }
    if (
        owner is not None
        and memory(value.tensor) == memory(tensor)
        and _layout(value.tensor) != _layout(tensor)
    ):
        return seen_through(tensor, owner)
    return {
        name: dims and _aligned(dims, value.tensor.shape, tensor.shape)
        for name, dims in value.weights.items()
    }


def _order(operation: Operation, ndim: int) -> list[int] | None:
    """The order in which a transposition takes the dimensions: exact also where sizes of one make
    strides ambiguous."""
    given = operation.given
    if operation.name == "t":
        return list(range(ndim))[::-1]
    if operation.name == "permute":
        return [d % ndim for d in given["dims"]]
    if operation.name != "transpose":
        return None
    order = list(range(ndim))
    first = given["dim0"]
    second = given["dim1"]
    order[first], order[second] = order[second], order[first]
    return order


def _aligned(dims: Dims, shape: Sequence[int], result: Sequence[int]) -> Dims | None:
    """`dims` after an elementwise operation with broadcasting; lost where the result is of lower
    order."""
    new = len(result) - len(shape)
    if new < 0:
        return None
    return ((),) * new + tuple(d if shape[i] == result[new + i] else () for i, d in enumerate(dims))


def picked(dims: Dims | None, at: Sequence[int], indices: Sequence[Tensor | None]) -> Dims | None:
    index = indices[at[0]]
    if dims is None or len(at) > 1 or index is None or index.dtype in (torch.bool, torch.uint8):
        return None
    return dims[: at[0]] + ((),) * index.ndim + dims[at[0] + 1 :]


def is_spread(operation: Operation, tensor: Tensor) -> bool:
    expanded = any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return expanded or operation.name == "repeat" or any(v.spread for v in operation.live)


def tensors_in(nested: Any) -> list[Tensor]:
    return [x for x in tree_leaves(nested) if isinstance(x, Tensor)]


def memory(tensor: Tensor) -> int:
    return storage_id(tensor)


def place_of(tensor: Tensor) -> tuple[int, int]:
    return int(tensor.storage_offset()), tensor.numel()


def _layout(tensor: Tensor) -> tuple[Sequence[int], Sequence[int]]:
    return tensor.shape, tensor.stride()


def read_number(x: Any) -> float | None:
    if isinstance(x, Tensor):
        return None if x.is_meta else float(x.item())
    return float(x)
