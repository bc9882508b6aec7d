"""Averages over space and tokens in a traced forward pass."""

from orderone.measure.kernels.traced_call import Call, whole_numbers
from orderone.measure.kernels.traced_values import Value, natural
from orderone.theory import kernels

AVERAGES = ("mean", "sum", "avg_pool1d", "avg_pool2d", "avg_pool3d")


def is_pool(name: str) -> bool:
    """Return whether a function averages over space, or over tokens."""
    return name in AVERAGES or "adaptive_avg" in name


def pooled(call: Call, x: Value) -> Value | None:
    """Return the value after an average over all places, or over windows of them."""
    assert x.features is not None
    if call.name in ("mean", "sum"):
        return _mean(call, x)
    if x.features != 1:
        return None
    if "adaptive" in call.name:
        if any(size != 1 for size in call.tensor.shape[2:]):
            return None
        return natural(call.tensor, x.node.then(kernels.AveragePool()), 1)
    options = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
    given = call.given(*options, "divisor_override")
    if given.get("ceil_mode") or given.get("divisor_override") is not None:
        return None
    window = whole_numbers(given["kernel_size"])
    stride = given.get("stride")
    layer = kernels.LocalAveragePool(
        window,
        whole_numbers(stride) if stride else window,
        whole_numbers(given.get("padding", 0)),
        bool(given.get("count_include_pad", True)),
    )
    return natural(call.tensor, x.node.then(layer), 1)


def _mean(call: Call, x: Value) -> Value | None:
    assert x.features is not None
    space = [axis for axis in range(1, x.tensor.dim()) if axis != x.features]
    axes = call.option("dim")
    if not space or axes is None:
        return None
    chosen = {axis % x.tensor.dim() for axis in whole_numbers(axes)}
    if chosen != set(space):
        return None
    if call.tensor.dim() == x.tensor.dim():
        features = x.features
    else:
        features = call.tensor.dim() - 1
    node = x.node.then(kernels.AveragePool())
    if call.name == "sum":
        places = 1
        for axis in chosen:
            places *= x.tensor.shape[axis]
        node = node.then(kernels.Scale(places))
    return natural(call.tensor, node, features)
