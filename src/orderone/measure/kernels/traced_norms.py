"""Norms and dropout in a traced forward pass; norms are functions of torch, or written out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.measure.kernels.traced_call import Call
from orderone.measure.kernels.traced_values import (
    UNCHANGED,
    Statistic,
    Value,
    after,
    own_labels,
    varying,
)
from orderone.theory import kernels

if TYPE_CHECKING:
    from orderone.measure.kernels.traced_attention import Scores
    from orderone.measure.kernels.traced_layers import Layers

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "batch_norm": (
        *("input", "running_mean", "running_var", "weight", "bias", "training"),
        *("momentum", "eps"),
    ),
}
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d")


def norm(trace: "Layers", call: Call, x: Value) -> Value | None:
    """Return a stream after a norm of its channels, or a batch norm as it is at the start."""
    given = call.given(*ARGUMENTS[call.name])
    gain = _gain(trace, given)
    if gain is None:
        return None
    eps = given.get("eps")
    if call.name == "batch_norm":
        mean = given.get("running_mean")
        variance = given.get("running_var")
        if x.features != 1 or not isinstance(mean, Tensor) or not isinstance(variance, Tensor):
            return None
        if bool((mean != 0).any()) or bool((variance != 1).any()):
            return None  # statistics of training
        assert isinstance(eps, float)
        return after(x, call.tensor, kernels.Scale(gain / (1 + eps) ** 0.5))
    shape = given.get("normalized_shape")
    last = x.tensor.dim() - 1
    if x.features != last or not isinstance(shape, Sequence) or len(shape) != 1:
        return None
    return after(x, call.tensor, *_layers(call.name, eps, gain, x.tensor))


def check_statistics(args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise if a batch norm takes its statistics from the batch."""
    given = {**dict(zip(ARGUMENTS["batch_norm"], args, strict=False)), **kwargs}
    if given.get("training"):
        raise InputError(
            "model: a batch norm in training mode makes the examples of a batch depend on each"
            " other, so there is no limit of infinite width; call model.eval() first",
            "no-infinite-width",
            argument="model",
        )


def norm_of_heads(trace: "Layers", call: Call, x: Value) -> Value | None:
    """Return queries or keys after a norm of each head."""
    given = call.given(*ARGUMENTS[call.name])
    gain = _gain(trace, given)
    shape = given.get("normalized_shape")
    if gain is None or x.labels is None:
        return None
    token_axes, channel_axes = varying(x.labels, x.channels)
    last = x.tensor.dim() - 1
    if last not in channel_axes or last in token_axes or not isinstance(shape, Sequence):
        return None
    if len(shape) != 1:
        return None
    node = trace.node_of(x)
    for layer in _layers(call.name, given.get("eps"), gain, x.tensor):
        node = node.then(layer)
    labels, size = own_labels(x)
    return Value(call.tensor, node, labels, size, count=x.count)


def _gain(trace: "Layers", given: dict[str, object]) -> float | None:
    """Return the size of the gains; None if there are shifts, which have no entry."""
    weight = given.get("weight")
    if weight is None:
        gain = 1.0
    else:
        gain = trace.weights.gain(weight)
    shift = given.get("bias")
    if gain is None or trace.weights.gain(shift) != 0:
        return None
    return gain


def _layers(name: str, eps: object, gain: float, x: Tensor) -> list[kernels.Layer]:
    if eps is None:
        number = torch.finfo(x.dtype).eps
    else:
        number = eps
    assert isinstance(number, float)
    if name == "layer_norm":
        layer = kernels.LayerNorm(number)
    else:
        layer = kernels.RMSNorm(number)
    if gain == 1:
        return [layer]
    return [layer, kernels.Scale(gain)]


def mean_square(call: Call, x: Value) -> Statistic | None:
    """Return the mean square over channels, if `x` is a square."""
    axes = call.option("dim")
    last = x.tensor.dim() - 1
    if x.origin is None or x.features != last or axes not in (-1, last, [-1], (-1,)):
        return None
    points = torch.linspace(-3.0, 3.0, 13, dtype=torch.float64)
    squares = x.origin.function(points)
    if call.tensor.shape[-1] != 1 or not torch.equal(squares, points**2):
        return None
    return Statistic(call.tensor, Value(x.tensor, x.origin.node, x.labels, x.channels, last))


def of_statistic(
    call: Call, operands: Sequence["Value | Scores | Statistic"]
) -> "Sequence[Value | Statistic] | None":
    """Return the steps of an RMS norm that is written out: + eps, rsqrt, times the stream.

    Or + eps, sqrt, and the stream divided by it.
    """
    statistic = next(each for each in operands if isinstance(each, Statistic))
    result = call.result
    if not isinstance(result, Tensor):
        return None
    if len(operands) == 1:
        numbers = [a for a in (*call.args, *call.kwargs.values()) if isinstance(a, int | float)]
        if statistic.form == "square" and call.name in ("rsqrt", "sqrt"):
            if call.name == "rsqrt":
                form = "inverse"
            else:
                form = "root"
            return [replace(statistic, tensor=result, form=form)]
        if statistic.form == "square" and call.name == "add" and len(numbers) == 1:
            return [replace(statistic, tensor=result, eps=statistic.eps + numbers[0])]
        if call.name in UNCHANGED:
            return [replace(statistic, tensor=result)]
        return None
    others = [each for each in operands if isinstance(each, Value)]
    same = len(others) == 1 and others[0].node is statistic.of.node
    times_inverse = call.name == "mul" and statistic.form == "inverse"
    by_root = call.name in ("div", "truediv") and call.args[1:] == (statistic.tensor,)
    if not same or not (times_inverse or (by_root and statistic.form == "root")):
        return None
    value = after(others[0], result, kernels.RMSNorm(statistic.eps))
    return None if value is None else [value]


def drops(call: Call) -> bool:
    """Return whether a dropout acts, as in training mode."""
    return call.given("input", "p", "training").get("training", True) is True


def dropout(call: Call, x: Value) -> Value | None:
    """Return a stream after dropout, which does nothing in evaluation mode."""
    p = call.option("p", 0.5)
    assert isinstance(p, int | float)
    if p == 0 or not drops(call):
        return after(x, call.tensor)
    if call.name != "dropout" and x.tensor.dim() > 2:
        return None  # whole channels: pixels share a mask
    return after(x, call.tensor, kernels.Dropout(1 - p))
