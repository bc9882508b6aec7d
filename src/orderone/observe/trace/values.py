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


Dims = tuple[
    tuple[int, ...], ...
]  # for each dimension of a tensor, the axes of the parameter it runs along
Weights = dict[str, Dims | None]  # parameters a tensor is made of; None: the axes are lost


@dataclass
class Value:
    """What is known of a tensor. It holds the tensor, so that no other tensor gets its id or its
    memory."""

    tensor: Tensor
    level: Level = Level.CONSTANT
    step: int | None = (
        None  # the step that made it; None for constants and for parameters as they are
    )
    weights: Weights = field(default_factory=dict)  # at level PARAMETER
    owner: "Value | None" = None  # of the memory, where this is a view of a PARAMETER
    spread: bool = (
        False  # a PARAMETER copied along a batch: from there on an input rather than a weight
    )

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
        axes = {
            name: sorted({axis for d in dims for axis in own[d]} if own else ())
            for name, own in self.weights.items()
        }
        return [(name, Use(kind, tuple(found) or None)) for name, found in axes.items()]


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
    product: tuple[int, int, int] | None = (
        None  # steps of what may be queries and keys, and the size of a head
    )
    parents: tuple[int, ...] = ()  # the steps of `flow`
    ancestors: int = 0  # bit mask of steps; its own included


@dataclass(frozen=True)
class Operation:
    """An aten operation as it was called."""

    name: str
    given: Mapping[str, Any]
    operands: list[Value]
    results: list[Tensor]

    @property
    def live(self) -> list[Value]:
        return [v for v in self.operands if v.level != Level.CONSTANT]

    @property
    def inputs(self) -> list[Value]:
        return [v for v in self.operands if v.is_input and v.is_float]

    @property
    def other_uses(self) -> list[tuple[str, Use]]:
        return [use for v in self.operands for use in v.used("other")]


# --- parameters behind views and copies -----------------------------------------------------------


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
