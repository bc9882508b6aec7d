"""Layers with weights in a traced forward pass: linear layers, tables, convolutions.

Weights count by their mean square. Layers are independent only if no two of them share weights, so
a parameter that is used for the second time has no limit.
"""

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.measure.kernels.random_weights import (
    are_correlated,
    check_centred,
    check_directions,
    check_rows,
    common_size,
    excess_kurtosis,
    excess_of_shifts,
    rows_differ,
    sampled,
    zero_rows,
)
from orderone.measure.kernels.traced_call import Call, whole_numbers
from orderone.measure.kernels.traced_values import (
    Narrow,
    Projection,
    Use,
    Value,
    narrower,
    natural,
    with_channels,
)
from orderone.theory import kernels

if TYPE_CHECKING:
    from orderone.measure.kernels.traced_layers import Layers

DENSE = ("linear", "addmm", "matmul", "mm", "einsum")
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")


class Weights:
    """Parameters of a model, and which of them a forward pass has used."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self.names = names
        self.used: set[int] = set()
        self.trained: list[str] = []
        self.frozen: list[str] = []
        self.gains: list[str] = []
        self.by_size: dict[float, list[Tensor]] = {}
        self.by_shape: dict[tuple[int, ...], list[tuple[str, Tensor]]] = {}
        self.unequal: dict[int, Projection] = {}  # projections with neurons of different sizes

    def __contains__(self, tensor: object) -> bool:
        return id(tensor) in self.names

    def variance(self, parameter: object) -> float | None:
        """Return the mean square of a parameter that is used for the first time."""
        if parameter is None:
            return 0.0
        if not isinstance(parameter, Tensor) or parameter not in self:
            return None
        if id(parameter) in self.used:
            raise _used_twice(self.names[id(parameter)])
        self.used.add(id(parameter))
        name = self.names[id(parameter)]
        check_centred(parameter, name)
        if parameter.dim() > 1:
            check_directions(parameter, name)
        (self.trained if parameter.requires_grad else self.frozen).append(name)
        square = float(parameter.detach().double().square().mean())
        self._check_new(parameter, square)
        if parameter.dim() > 1 and square > 0:
            self._check_independent(parameter, name)
        return square

    def _check_new(self, parameter: Tensor, square: float) -> None:
        """Raise if another layer has the same weights, as after copying it."""
        others = self.by_size.setdefault(square, [])
        for other in others:
            if square > 0 and other.shape == parameter.shape and torch.equal(other, parameter):
                raise InputError(
                    f"model: the parameters {self.names[id(other)]!r} and"
                    f" {self.names[id(parameter)]!r} have equal values, so that layers are not"
                    " independent (nn.TransformerEncoder copies its layer); draw the weights of"
                    " each layer separately",
                    "no-infinite-width",
                    argument="model",
                )
        others.append(parameter)

    def _check_independent(self, parameter: Tensor, name: str) -> None:
        """Raise if the weights of another layer are correlated with these."""
        shape = tuple(sorted((len(parameter), parameter[0].numel())))
        others = self.by_shape.setdefault(shape, [])
        entries = sampled(parameter)
        for other, values in others:
            if any(are_correlated(values, each) for each in entries):
                raise InputError(
                    f"model: the weights of {other!r} and {name!r} are correlated, as after copying"
                    " or transposing one of them, so that layers are not independent; draw the"
                    " weights of each layer separately",
                    "no-infinite-width",
                    argument="model",
                )
        others.append((name, entries[0]))

    def gain(self, parameter: object) -> float | None:
        """Return the size of gains, or of shifts, which are the same for all neurons."""
        if parameter is None:
            return 0.0
        if not isinstance(parameter, Tensor) or parameter not in self:
            return None
        name = self.names[id(parameter)]
        if id(parameter) in self.used:
            raise _used_twice(name)
        self.used.add(id(parameter))
        if parameter.requires_grad:
            self.gains.append(name)
        return common_size(parameter, name)

    def check(self, sliced: Container[int]) -> None:
        """Raise if some weights are frozen, or if neurons of a layer have different sizes.

        `sliced` are projections of which only slices are used.
        """
        for key, projection in self.unequal.items():
            if key not in sliced:
                check_rows(projection.weight, projection.name)
        if self.frozen and self.trained:
            raise InputError(
                f"model: the parameter {self.frozen[0]!r} is frozen and {self.trained[0]!r} is not;"
                " the tangent kernel here is that of all weights; call model.requires_grad_(True)",
                "no-infinite-width",
                argument="model",
            )

    def variances(self, weight: object, bias: object, fan_in: int) -> tuple[float, float] | None:
        """Return weight_var and bias_var of a layer."""
        weight_square = self.variance(weight)
        bias_square = self.variance(bias)
        if weight_square is None or bias_square is None:
            return None
        return fan_in * weight_square, bias_square


def _used_twice(name: str) -> InputError:
    return InputError(
        f"model: the parameter {name!r} is used twice, so that layers are not independent; give"
        " each layer weights of its own",
        "no-infinite-width",
        argument="model",
    )


def dense(trace: "Layers", call: Call, x: Value) -> Value | None:
    """Return the value after a linear layer, in one of the ways to write it."""
    given = _einsum(call, x) if call.name == "einsum" else call.given(*_names(call))
    last = x.tensor.dim() - 1
    if given.get("input") is not x.tensor or x.features != last or call.tensor.dim() != last + 1:
        return None
    weight = given.get("weight")
    transposed = False
    if isinstance(weight, Tensor) and weight not in trace.weights:
        original = trace.constants.transposed(weight)
        transposed = original is not None
        weight = weight if original is None else original
    bias = given.get("bias")
    variances = trace.weights.variances(weight, bias, x.tensor.shape[-1])
    if variances is None or not isinstance(weight, Tensor):
        return None
    by_rows = call.name == "linear" or given.get("by_rows") is True
    rows = weight if by_rows != transposed else weight.T
    name = trace.weights.names[id(weight)]
    projection: Projection | None = None
    if call.kwargs.get("alpha", 1) == 1 and call.kwargs.get("beta", 1) == 1:
        projection = Projection(x.node, rows, bias if isinstance(bias, Tensor) else None, name)
        if rows_differ(rows):
            trace.weights.unequal[id(projection)] = projection
    else:
        check_rows(rows, name)
    channels = call.tensor.shape[-1]
    labels = with_channels(x.tokens, last, channels)
    narrow = _narrow(trace, call, weight, bias, rows.shape[1])
    node = x.node.then(_layer(call, variances), [Use(name)], narrow)
    return Value(call.tensor, node, labels, channels, last, projection)


def _narrow(
    trace: "Layers", call: Call, weight: Tensor, bias: object, fan_in: int
) -> Narrow | None:
    """Return the weights or biases because of which neurons are not quite Gaussian."""
    names = trace.weights.names
    variance = float(call.tensor.detach().double().square().mean())
    of_weights = Narrow(names[id(weight)], excess_kurtosis(weight, fan_in), variance)
    if not isinstance(bias, Tensor):
        return of_weights
    weight_var = fan_in * float(weight.detach().double().square().mean())
    of_bias = Narrow(names[id(bias)], excess_of_shifts(bias, call.tensor, weight_var), variance)
    return narrower(of_weights, of_bias)


def _names(call: Call) -> tuple[str, ...]:
    """Return the names of the arguments of a linear layer."""
    if call.name == "linear":
        return ("input", "weight", "bias")
    return ("bias", "input", "weight") if call.name == "addmm" else ("input", "weight")


def _layer(call: Call, variances: tuple[float, float]) -> kernels.Dense:
    """Return the layer of alpha x W + beta b; only addmm has these numbers."""
    alpha = call.kwargs.get("alpha", 1)
    beta = call.kwargs.get("beta", 1)
    assert isinstance(alpha, int | float)
    assert isinstance(beta, int | float)
    return kernels.Dense(alpha**2 * variances[0], beta**2 * variances[1])


def _einsum(call: Call, x: Value) -> dict[str, object]:
    """Return the arguments of an einsum that is a linear layer, such as "bti,oi->bto"."""
    equation = call.args[0]
    if not isinstance(equation, str) or len(call.args) != 3 or equation.count("->") != 1:
        return {}
    left, out = equation.replace(" ", "").split("->")
    terms = left.split(",")
    first = call.args[1] is x.tensor
    stream, matrix = terms if first else terms[::-1]
    weight = call.args[2] if first else call.args[1]
    if len(matrix) != 2 or len(set(stream)) != len(stream):
        return {}
    inner = stream[-1]
    outer = matrix.replace(inner, "")
    if len(outer) != 1 or outer in stream or out != stream[:-1] + outer:
        return {}
    return {"input": x.tensor, "weight": weight, "by_rows": matrix[1] == inner}


def embedding(trace: "Layers", call: Call, x: Value) -> Value | None:
    """Return the rows of a table that whole numbers of the inputs choose."""
    weight = call.given("input", "weight").get("weight")
    if x.labels is not None or not isinstance(weight, Tensor) or trace.table is not None:
        return None
    square = trace.weights.variance(weight)
    if square is None:
        return None
    name = trace.weights.names[id(weight)]
    empty = zero_rows(weight)
    rows = weight.shape[0]
    if 0 < len(empty) < rows:  # padding: a token that is zero
        square *= rows / (rows - len(empty))
        trace.empty_rows = tuple(empty.tolist())
    filled = torch.ones(rows, dtype=torch.bool, device=weight.device)
    filled[empty] = False
    check_rows(weight[filled], name)
    trace.table = rows
    narrow = Narrow(name, excess_kurtosis(weight[filled], 1), square)
    node = x.node.then(kernels.Dense(rows * square), [Use(name)], narrow)
    return natural(call.tensor, node, call.tensor.dim() - 1)


def convolution(trace: "Layers", call: Call, x: Value) -> Value | None:
    """Return the value after a convolution without groups."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = call.given(*names)
    weight = given.get("weight")
    if x.features != 1 or given.get("groups", 1) != 1 or not isinstance(weight, Tensor):
        return None
    window = tuple(weight.shape[2:])
    dilation = whole_numbers(given.get("dilation", 1))
    padding = _padding(given.get("padding", 0), window, dilation)
    if padding is None:
        return None
    variances = trace.weights.variances(weight, given.get("bias"), weight[0].numel())
    if variances is None:
        return None
    name = trace.weights.names[id(weight)]
    check_rows(weight, name)
    layer = kernels.Conv(
        window,
        *variances,
        stride=whole_numbers(given.get("stride", 1)),
        padding=padding,
        dilation=dilation,
    )
    narrow = _narrow(trace, call, weight, given.get("bias"), weight[0].numel())
    return natural(call.tensor, x.node.then(layer, [Use(name)], narrow), 1)


def _padding(
    padding: object, window: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the zeros on each side; None if both sides differ."""
    if padding == "valid":
        return (0,)
    if padding != "same":
        return whole_numbers(padding)
    gaps = dilation if len(dilation) == len(window) else dilation * len(window)
    totals = [gap * (size - 1) for gap, size in zip(gaps, window, strict=True)]
    if any(total % 2 for total in totals):
        return None
    return tuple(total // 2 for total in totals)
