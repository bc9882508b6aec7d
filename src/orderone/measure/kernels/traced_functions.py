"""Functions of single neurons in a traced forward pass: activations, and arithmetic with numbers.

A chain of such functions is one activation of the last node before it, so that 0.5 x (1 + tanh(x))
is the function of x that it is, and not a product of branches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.measure.kernels.random_weights import MOST_CHANGE, MOST_KURTOSIS, change_of_square
from orderone.measure.kernels.traced_call import Call
from orderone.measure.kernels.traced_values import (
    Narrow,
    Node,
    Origin,
    Value,
    after,
    own_labels,
    same_layout,
    same_neurons,
)
from orderone.theory import kernels
from orderone.theory.activations.jumping import Jumping
from orderone.torch_compat import tree_map

if TYPE_CHECKING:
    from orderone.measure.kernels.traced_layers import Layers

# Functions of one number that torch has as functions or methods
ELEMENTWISE = {
    *("relu", "gelu", "tanh", "sigmoid", "silu", "softplus", "erf", "abs", "sin", "cos", "exp"),
    *("leaky_relu", "elu", "selu", "celu", "hardtanh", "relu6", "softsign", "mish", "square"),
    *("hardswish", "hardsigmoid", "logsigmoid", "tanhshrink", "hardshrink", "softshrink"),
    *("atan", "arctan", "asinh", "arcsinh", "sinh", "cosh", "sinc", "expm1", "erfc"),
}
# Names of theory for functions without arguments
NAMED = {"relu", "tanh", "sigmoid", "silu", "erf", "abs", "sin", "selu"}
# Functions of one tensor and numbers that treat each entry alone
WITH_NUMBERS = {
    *("pow", "add", "sub", "mul", "div", "truediv", "rsub", "neg", "float_power", "rdiv"),
    *("rtruediv", "clamp", "clamp_min", "clamp_max", "clip", "threshold"),
}


def activation(call: Call, x: Value) -> Value | None:
    """Return the value after a function of ELEMENTWISE."""
    options = {key: option for key, option in call.kwargs.items() if key != "inplace"}
    plain = not options and len(call.args) == 1
    name = call.name
    layer: kernels.Layer | None = None
    if name in NAMED and (plain or set(call.kwargs) <= {"inplace"}):
        layer = kernels.Activation(name)
    elif name == "gelu" and options.get("approximate", "none") == "none":
        layer = kernels.Activation("gelu")
    elif name == "leaky_relu":
        layer = kernels.Activation(f"leaky-relu({call.option('negative_slope', 0.01)})")
    safe = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    return _composed(safe, call.args, options, [x], call.tensor, layer)


def with_numbers(call: Call, x: Value) -> Value | None:
    """Return the value after arithmetic of one tensor with numbers."""
    return _composed(call.func, call.args, call.kwargs, [x], call.tensor)


def function_of_one(call: Call, operands: list[Value]) -> Value | None:
    """Return a sum or product of two functions of the same neurons, as x * sigmoid(x)."""
    left, right = operands
    if call.name not in ("add", "sub", "mul") or not same_layout(left, right):
        return None
    if not same_neurons(left, right):
        return None
    if left.source.node is not right.source.node:
        return None
    if call.name != "mul" and left.origin is None and right.origin is None:
        return None
    return _composed(call.func, call.args, call.kwargs, operands, call.tensor)


def _composed(
    func: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    operands: list[Value],
    result: Tensor,
    known: kernels.Layer | None = None,
) -> Value | None:
    """Return an activation, whose argument is the last node that is not one.

    `known` is the layer of theory for `func` alone: it needs no search for kinks.
    """
    x = operands[0]
    source = x.source
    if result.shape != x.tensor.shape:
        return None
    _check_argument(source.node)

    def function(values: Tensor) -> Tensor:
        def swap(leaf: object) -> object:
            for operand in operands:
                if leaf is operand.tensor:
                    return operand.source.function(values)
            return leaf

        arguments = tree_map(swap, (tuple(args), dict(kwargs)))
        found = func(*arguments[0], **arguments[1])
        assert isinstance(found, Tensor)
        return found

    if source.node.narrow is not None:
        _check_narrow(source.node.narrow, function)

    def phi(values: np.ndarray) -> np.ndarray:
        return function(torch.as_tensor(np.asarray(values, dtype=float))).numpy()

    if known is not None and x.origin is None:
        layer = known
    else:
        layer = kernels.Activation(phi)
        if isinstance(layer.phi, Jumping):
            raise _jumps(layer.phi)
    node = source.node.then(layer)
    origin = Origin(source.node, function)
    return Value(result, node, x.labels, x.channels, x.features, None, origin)


def _check_argument(node: Node) -> None:
    """Raise an InputError if a function of these neurons is not one of Gaussian numbers."""
    if not node.neurons.gaussian:
        raise InputError(
            "its argument is not Gaussian; only the output of a layer with weights is. The argument"
            " is an input, or it follows another function, such as the sum after a residual block"
            " whose skip path has passed an activation",
            "needs-dense-layer",
            argument="model",
        )


def _jumps(phi: Jumping) -> InputError:
    jumps = [x for x, height in zip(phi.kinks, phi.jumps, strict=True) if height]
    at = ", ".join(f"{x:.6g}" for x in jumps)
    return InputError(
        f"model: a function of single neurons jumps at {at}; gradients of a training"
        " leave out the jump, and the tangent kernel of the limit is infinite; for the NNGP alone,"
        " compose theory.kernels.Activation(function) with other layers",
        "no-infinite-width",
        argument="model",
    )


def _check_narrow(narrow: Narrow, function: Callable[[Tensor], Tensor]) -> None:
    """Raise if neurons are so far from Gaussian that kernels after the function are different."""
    change = change_of_square(function, narrow.variance, narrow.excess)
    if abs(narrow.excess) > MOST_KURTOSIS or abs(change) > MOST_CHANGE:
        raise _not_gaussian(narrow.name)


def _not_gaussian(name: str) -> InputError:
    return InputError(
        f"model: the numbers {name!r} are not Gaussian (torch draws weights from a uniform"
        " distribution), and each neuron is a sum of too few of them to be Gaussian; draw them with"
        " nn.init.normal_(parameter, std=...), or give the layer more inputs",
        "no-infinite-width",
        argument="model",
    )


def scaled(trace: "Layers", call: Call, x: Value) -> Value | None:
    """Return a stream times a number, or times the gains of its channels."""
    number = factor(trace, call, x.tensor)
    if number is None:
        return _gained(trace, call, x)
    if x.features is None:
        return _scaled_piece(trace, call, x, number)
    value = after(x, call.tensor, kernels.Scale(number))
    if value is None:
        return None
    source = x.source

    def scaled_source(values: Tensor) -> Tensor:
        return number * source.function(values)

    return replace(value, origin=Origin(source.node, scaled_source))


def _scaled_piece(trace: "Layers", call: Call, x: Value, number: float) -> Value | None:
    """Return a piece times a number, as queries that are divided by the root of their size."""
    if x.labels is None or call.tensor.shape != x.tensor.shape:
        return None
    labels, size = own_labels(x)
    node = trace.node_of(x).then(kernels.Scale(number))
    return Value(call.tensor, node, labels, size, count=x.count)


def factor(trace: "Layers", call: Call, tensor: Tensor) -> float | None:
    """Return the number by which a tensor is multiplied; None if it is no number."""
    others = call.others(tensor)
    if len(others) != 1 or (call.name != "mul" and call.args[0] is not tensor):
        return None
    number = others[0]
    if isinstance(number, Tensor) and number.numel() == 1 and number not in trace.weights:
        if number.requires_grad:
            reason = " (it multiplies by a number that is trained)"
            raise trace.no_limit(call.func, reason)
        trace.read(number)
        number = number.item()
    if not isinstance(number, int | float) or (call.name != "mul" and number == 0):
        return None
    return float(number) if call.name == "mul" else 1 / number


def _gained(trace: "Layers", call: Call, x: Value) -> Value | None:
    """Return a stream times the gains of its channels, which count by their mean square."""
    others = call.others(x.tensor)
    if call.name != "mul" or len(others) != 1 or x.features != x.tensor.dim() - 1:
        return None
    gain = others[0]
    if not isinstance(gain, Tensor) or gain.dim() != 1 or gain.numel() != x.channels:
        return None
    size = trace.weights.gain(gain)
    return None if size is None else after(x, call.tensor, kernels.Scale(size))
