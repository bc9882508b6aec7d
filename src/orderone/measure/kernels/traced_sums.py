"""Sums and products of streams in a traced forward pass: branches, gates, positions, tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from orderone.measure.kernels.random_weights import excess_of_shifts
from orderone.measure.kernels.traced_call import Call
from orderone.measure.kernels.traced_constants import Added
from orderone.measure.kernels.traced_values import (
    Narrow,
    Value,
    after,
    branches_of,
    narrower,
    natural,
    same_layout,
    same_neurons,
)
from orderone.theory import kernels

if TYPE_CHECKING:
    from orderone.measure.kernels.traced_layers import Layers


def added(call: Call, operands: list[Value]) -> Value | None:
    """Return the sum of a stream and a branch, or of two branches."""
    left, right = operands
    alpha = call.kwargs.get("alpha", 1)
    if not same_layout(left, right) or not isinstance(alpha, int | float):
        return None
    if alpha == 1:
        last = right.node
    else:
        last = right.node.then(kernels.Scale(alpha))
    branches = branches_of([left.node, last])
    first, second = branches.layers
    if not first and not second and not same_neurons(left, right):
        return None  # a stream plus itself with its neurons in another order
    if not first or not second:
        branch = first or second
        layer: kernels.Layer = kernels.Residual(*branch) if branch else kernels.Scale(2.0)
    else:
        layer = kernels.Sum(kernels.Sequential(*first), kernels.Sequential(*second))
    narrow = narrower(left.node.narrow, right.node.narrow)
    node = branches.start.then(layer, branches.uses, narrow)
    return Value(call.tensor, node, left.labels, left.channels, left.features)


def multiplied(operands: list[Value], result: Tensor) -> Value | None:
    """Return the product of two branches, as the two halves of a gated layer."""
    left, right = operands
    if not same_layout(left, right):
        return None
    branches = branches_of([left.node, right.node])
    first, second = branches.layers
    layer = kernels.Product(kernels.Sequential(*first), kernels.Sequential(*second))
    return Value(result, branches.joined(layer), left.labels, left.channels, left.features)


def with_positions(trace: "Layers", call: Call, x: Value) -> Value | None:
    """Return a stream plus numbers that do not depend on the inputs."""
    others = call.others(x.tensor)
    if len(others) != 1 or not isinstance(others[0], Tensor) or call.tensor.shape != x.tensor.shape:
        return None
    trace.read(others[0])
    if others[0].requires_grad and not trace.constants.knows(others[0]):
        reason = " (it adds numbers that depend on parameters in a way that cannot be followed)"
        raise trace.no_limit(call.func, reason)
    numbers = trace.constants.added(others[0], x, trace.weights.variance)
    if numbers is None:
        return None
    P = numbers.covariance
    if not P.any():
        return after(x, call.tensor)
    if numbers.parameter is None:
        return _with_fixed(call, x, numbers)
    variance = float(P[0, 0])
    if np.ptp(P) == 0:  # a bias: the same row for all tokens
        layer: kernels.Layer = kernels.Residual(kernels.Dense(0.0, variance))
    else:
        layer = kernels.AddPositions(P)
    name = trace.weights.names[id(numbers.parameter)]
    total = float(call.tensor.detach().double().square().mean())
    shifts = Narrow(name, excess_of_shifts(numbers.parameter, call.tensor), total)
    node = x.node.then(layer, narrow=narrower(x.node.narrow, shifts))
    return Value(call.tensor, node, x.labels, x.channels, x.features)


def _with_fixed(call: Call, x: Value, numbers: Added) -> Value | None:
    """Return a stream plus, or minus, numbers that are the same in every network."""
    if len(numbers.covariance) == 1:
        return None  # single points: no layer has fixed numbers for each channel
    signs = {"add": (1, 1), "sub": (1, -1)}
    of_stream, of_numbers = signs[call.name]
    if call.name == "sub" and call.args[0] is not x.tensor:
        of_stream, of_numbers = -1, 1
    means = of_numbers * numbers.means
    layers: list[kernels.Layer] = [kernels.AddPositions(numbers.covariance, False, means)]
    if of_stream < 0:
        layers.insert(0, kernels.Scale(-1.0))
    return after(x, call.tensor, *layers)


def with_first_tokens(trace: "Layers", call: Call, x: Value) -> Sequence[Value] | None:
    """Return a stream with a trained token before the others.

    Empty tensors, as in a cache of keys and values before the first token, add nothing.
    """
    given = call.given("tensors", "dim")
    tensors = given.get("tensors")
    axis = given.get("dim", 0)
    assert isinstance(tensors, Sequence)
    assert isinstance(axis, int)
    tensors = [tensor for tensor in tensors if tensor.numel() > 0]
    if len(tensors) == 1 and isinstance(call.result, Tensor):
        return [replace(x, tensor=call.result)]
    if len(tensors) != 2 or tensors[1] is not x.tensor or not isinstance(call.result, Tensor):
        return None
    axis %= x.tensor.dim()
    if x.features is None or x.token_axes not in ([axis], []) or axis == x.features:
        return None
    rows = trace.constants.rows(tensors[0], x.features, trace.weights.variance)
    if rows is None or rows.shape[0] != tensors[0].shape[axis]:
        return None
    node = x.node.then(kernels.FirstTokens(rows))
    return [natural(call.result, node, x.features)]
