"""Axes of parameters that the dimensions of views and copies run along.

They follow from strides: a view moves through the memory of its owner, and the stride of a
dimension says along which of the owner's dimensions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from orderone.observe.trace.steps import Dims, Operation, Value, Weights
from orderone.torch_compat import storage_id, tree_leaves


def weights_of_view(view: Tensor, owner: Value) -> Weights:
    """Return the parameter axes of each dimension of `view`, from its strides in the memory of
    `owner`."""
    spans = [_span(view.shape[d], view.stride(d), owner.tensor) for d in range(view.ndim)]
    weights: Weights = {}
    for name, dims in owner.weights.items():
        weights[name] = None if dims is None else _along(spans, dims)
    return weights


def _along(spans: Sequence[Sequence[int]], dims: Dims) -> Dims:
    """Return the axes of each span of dimensions; `dims` has the axes of every dimension."""
    result: list[tuple[int, ...]] = []
    for span in spans:
        axes: list[int] = []
        for dim in span:
            axes += dims[dim]
        result.append(tuple(axes))
    return tuple(result)


def _span(size: int, stride: int, owner: Tensor) -> list[int]:
    """Return the dimensions of `owner` that a dimension of a view is a part of, or merges."""
    if size == 1 or stride == 0:
        return []
    dims: list[int] = []
    for dim in range(owner.ndim):
        if owner.shape[dim] <= 1:
            continue
        start = owner.stride(dim)
        end = start * owner.shape[dim]
        is_part = start <= stride < end
        is_covered = stride <= start < stride * size
        if is_part or is_covered:
            dims.append(dim)
    return dims


def derived(operation: Operation, tensor: Tensor, owner: Value | None) -> Weights:
    """Return the parameters in a tensor that is computed from parameters alone."""
    weights: Weights = {}
    for value in operation.live:
        for name, dims in _carried(operation, value, tensor, owner).items():
            weights[name] = weights.get(name) or dims
    return weights


def _carried(operation: Operation, value: Value, tensor: Tensor, owner: Value | None) -> Weights:
    order = _order(operation, value.tensor.ndim)
    if order is None and owner is not None and _is_other_view(value.tensor, tensor):
        return weights_of_view(tensor, owner)
    weights: Weights = {}
    for name, dims in value.weights.items():
        if not dims:
            weights[name] = dims
        elif order is not None:
            weights[name] = tuple(dims[d] for d in order)
        else:
            weights[name] = _aligned(dims, value.tensor.shape, tensor.shape)
    return weights


def _is_other_view(tensor: Tensor, other: Tensor) -> bool:
    return memory(tensor) == memory(other) and _layout(tensor) != _layout(other)


def _order(operation: Operation, ndim: int) -> list[int] | None:
    """Return the new order of dimensions after a transposition, None for other operations.

    Sizes of one make strides ambiguous; the arguments of the call are exact.
    """
    arguments = operation.arguments
    if operation.name == "t":
        return list(range(ndim))[::-1]
    if operation.name == "permute":
        return [d % ndim for d in arguments["dims"]]
    if operation.name != "transpose":
        return None
    order = list(range(ndim))
    first = arguments["dim0"]
    second = arguments["dim1"]
    order[first], order[second] = order[second], order[first]
    return order


def _aligned(dims: Dims, shape: Sequence[int], result: Sequence[int]) -> Dims | None:
    """Return `dims` after an elementwise operation with broadcasting.

    None if the result has fewer dimensions: then the axes are lost.
    """
    new = len(result) - len(shape)
    if new < 0:
        return None
    aligned: list[tuple[int, ...]] = [()] * new
    for axes, size, result_size in zip(dims, shape, result[new:], strict=False):
        aligned.append(axes if size == result_size else ())
    return tuple(aligned)


def dims_after_index(
    dims: Dims | None, at: Sequence[int], indices: Sequence[Tensor | None]
) -> Dims | None:
    """Return `dims` after indexing with `indices`, of which the dimensions `at` are not None."""
    index = indices[at[0]]
    if dims is None or len(at) > 1 or index is None or index.dtype in (torch.bool, torch.uint8):
        return None
    return dims[: at[0]] + ((),) * index.ndim + dims[at[0] + 1 :]


def is_spread(operation: Operation, tensor: Tensor) -> bool:
    """Return whether a parameter is copied along a dimension of `tensor`."""
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if size > 1 and stride == 0:
            return True
    return operation.name == "repeat" or any(value.spread for value in operation.live)


def tensors_in(nested: object) -> list[Tensor]:
    return [x for x in tree_leaves(nested) if isinstance(x, Tensor)]


def memory(tensor: Tensor) -> int:
    """Return a number that all views of one piece of memory share."""
    return storage_id(tensor.untyped_storage())


def place_of(tensor: Tensor) -> tuple[int, int]:
    """Return offset and number of entries of a tensor within its memory."""
    return int(tensor.storage_offset()), tensor.numel()


def _layout(tensor: Tensor) -> tuple[Sequence[int], Sequence[int]]:
    return tensor.shape, tensor.stride()


def read_number(x: Tensor | int | float) -> float | None:
    """Return a number or the value of a tensor with one entry; None on the meta device."""
    if not isinstance(x, Tensor):
        return float(x)
    if x.is_meta:
        return None
    return float(x.item())
