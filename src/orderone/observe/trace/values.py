"""Tensors, operations and steps of a forward pass as they are recorded, and parameters in views.

`Value` says where a tensor comes from, `Operation` what was called, `Step` how values pass through
an operation. A parameter may be seen through views and copies: the second part finds the axes of
the parameter that the dimensions of a tensor run along.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from orderone.observe.trace.facts import Use
from orderone.torch_compat import storage_id, tree_leaves


class Level(IntEnum):
    CONSTANT, DATA, PARAMETER, ACTIVATION = range(4)


# for each dimension of a tensor, the axes of the parameter it runs along
Dims = tuple[tuple[int, ...], ...]
# parameters a tensor is made of; None: the axes are lost
Weights = dict[str, Dims | None]


@dataclass
class Value:
    """What is known of a tensor. It holds the tensor, so that no other tensor gets its id or its
    memory."""

    tensor: Tensor
    level: Level = Level.CONSTANT
    # the step that made it; None for constants and for parameters as they are
    step: int | None = None
    weights: Weights = field(default_factory=dict)  # at level PARAMETER
    owner: "Value | None" = None  # of the memory, where this is a view of a PARAMETER
    # a PARAMETER copied along a batch: from there on an input rather than a weight
    spread: bool = False

    @property
    def is_float(self) -> bool:
        return self.tensor.is_floating_point() or self.tensor.is_complex()

    @property
    def is_input(self) -> bool:
        return self.level in (Level.DATA, Level.ACTIVATION)

    @property
    def is_weight(self) -> bool:
        return self.level == Level.PARAMETER

    def used(self, kind: str) -> list[tuple[str, Use]]:
        return [(name, Use(kind)) for name in self.weights]

    def summed(self, kind: str, dims: Iterable[int]) -> list[tuple[str, Use]]:
        """Uses that sum over `dims` of the tensor, in terms of the parameters' axes."""
        dims = list(dims)
        uses: list[tuple[str, Use]] = []
        for name, axes_by_dim in self.weights.items():
            summed: set[int] = set()
            if axes_by_dim:
                for dim in dims:
                    summed.update(axes_by_dim[dim])
            uses.append((name, Use(kind, tuple(sorted(summed)) or None)))
        return uses


@dataclass
class Step:
    """An operation, by how a value passes through it.

    pass, add, shift, constant, gain, weighting    linear; weighting is a product with a tensor made
                                                   without parameters
    product, contraction, attention                of activations: linear in each of `flow`
    matrix, convolution, lookup                    uses of parameters, where every walk ends
    normalized, norm                               division by a statistic; norm: with a gain
    softcap, softmax, stop                         not linear
    weights                                        the result is at level PARAMETER
    """

    kind: str
    flow: list[Value] = field(default_factory=list)  # the activations it is about
    uses: list[tuple[str, Use]] = field(default_factory=list)
    factor: float | None = 1.0  # of a constant; the scale inside attention
    weights: Weights | None = None  # None: to be found out from the tensors
    statistic: bool = False  # a root of a mean square, of a variance, ...
    fed: bool = False  # depends on the inputs
    # steps of what may be queries and keys, and the size of a head
    product: tuple[int, int, int] | None = None
    parents: tuple[int, ...] = ()  # the steps of `flow`
    ancestors: int = 0  # bit mask of steps; its own included


@dataclass(frozen=True)
class Operation:
    """An aten operation as it was called."""

    name: str
    arguments: Mapping[str, Any]
    operands: list[Value]
    results: list[Tensor]

    @property
    def live(self) -> list[Value]:
        return [value for value in self.operands if value.level != Level.CONSTANT]

    @property
    def inputs(self) -> list[Value]:
        return [value for value in self.operands if value.is_input and value.is_float]

    @property
    def other_uses(self) -> list[tuple[str, Use]]:
        uses: list[tuple[str, Use]] = []
        for value in self.operands:
            uses += value.used("other")
        return uses


# --- parameters behind views and copies -----------------------------------------------------------


def weights_of_view(view: Tensor, owner: Value) -> Weights:
    """Return the axes that each dimension of `view` runs along, by its strides in the memory of
    `owner`."""
    spans = [_span(view.shape[d], view.stride(d), owner.tensor) for d in range(view.ndim)]
    weights: Weights = {}
    for name, dims in owner.weights.items():
        weights[name] = None if dims is None else _along(spans, dims)
    return weights


def _along(spans: Sequence[Sequence[int]], dims: Dims) -> Dims:
    """Return the axes of each span of dimensions, where `dims` has those of one dimension."""
    result: list[tuple[int, ...]] = []
    for span in spans:
        axes: list[int] = []
        for dim in span:
            axes += dims[dim]
        result.append(tuple(axes))
    return tuple(result)


def _span(size: int, stride: int, owner: Tensor) -> list[int]:
    """The dimensions of `owner` that a dimension of a view lies in (a part of one) or covers
    (merged ones)."""
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
    """Return the parameters in a tensor that is made of parameters alone."""
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
    """The order in which a transposition takes the dimensions: exact also where sizes of one make
    strides ambiguous."""
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
    """`dims` after an elementwise operation with broadcasting; lost where the result is of lower
    order."""
    new = len(result) - len(shape)
    if new < 0:
        return None
    aligned: list[tuple[int, ...]] = [()] * new
    for axes, size, result_size in zip(dims, shape, result[new:], strict=False):
        aligned.append(axes if size == result_size else ())
    return tuple(aligned)


def picked(dims: Dims | None, at: Sequence[int], indices: Sequence[Tensor | None]) -> Dims | None:
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
    return storage_id(tensor)


def place_of(tensor: Tensor) -> tuple[int, int]:
    return int(tensor.storage_offset()), tensor.numel()


def _layout(tensor: Tensor) -> tuple[Sequence[int], Sequence[int]]:
    return tensor.shape, tensor.stride()


def read_number(x: Tensor | int | float) -> float | None:
    if not isinstance(x, Tensor):
        return float(x)
    if x.is_meta:
        return None
    return float(x.item())
