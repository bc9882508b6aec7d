"""Signals and gradients of random dropout networks, layer by layer, over many networks at once.

    z^l = (1/rho) W^l (p^l y^{l-1}) + b^l,    y^l = phi(z^l),    y^0 the input         S1 (1)
    delta^L = 2 y^L phi'(z^L)
    delta^l = phi'(z^l) (p^{l+1}/rho) (W^{l+1}^T delta^{l+1})                          S1 (7)

W ~ N(0, weight_var/N), b ~ N(0, bias_var), masks p ~ Bernoulli(keep), fresh for every input, layer
and network; the loss is the sum of squares (erratum S1.8). The gradient of W^l is the outer product
of delta^l and x^l = p^l y^{l-1} / rho, so that the sums over N^2 entries in S1 (8) follow from
vectors:

    q_aa = z_a z_a / N,    q_ab = z_a z_b / N,    c_ab = q_ab / sqrt(q_aa q_bb)
    g_aa = (delta_a delta_a)(x_a x_a) / N^2,    g_ab = (delta_a delta_b)(x_a x_b) / N^2
    l1_g_ab = sum_i |delta_a delta_b|_i sum_j |x_a x_b|_j / N^2           S1 section 4.1

(S1 writes the last one as g_ab with a tilde.)

Erratum S1.4: theory predicts the mean of g_ab with its sign; abs_g_ab = |g_ab| has a noise floor.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, TypeAlias, cast

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from orderone.core.arrays import together
from orderone.core.checks import keep_rate, variance, within
from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Function, Name, Number, UserInput
from orderone.core.progress import Report, bar
from orderone.core.reals import real
from orderone.measure import records
from orderone.measure.dropout_weights import Drawn, Implied, Weights
from orderone.measure.elementwise import Elementwise, value_and_slope
from orderone.measure.fit import Fit, fit_exponent
from orderone.theory import activations

QUANTITIES = ("q_aa", "q_ab", "c_ab", "g_aa", "g_ab", "abs_g_ab", "l1_g_ab")
WEIGHTS: dict[str, type[Weights]] = {"implied": Implied, "drawn": Drawn}
FEWEST_LAYERS = 3  # smallest number of points for a fitted line with an interval
LIVE = 12  # vectors of a layer in memory, besides its weights

ActivationInput: TypeAlias = Annotated[str | activations.Activation | Function, UserInput]
DtypeInput: TypeAlias = Annotated[torch.dtype, UserInput]
DeviceInput: TypeAlias = Annotated[str | int | torch.device, UserInput]
ProgressInput: TypeAlias = Annotated[bool | Callable[[int, int, str], None], UserInput]


@dataclass(frozen=True)
class Networks:
    """Settings that all networks share."""

    phi: Elementwise
    slope: Elementwise
    weight_var: float
    bias_var: float
    keep: float
    width: int
    depth: int
    weights: type[Weights]


def dropout_metrics(
    activation: ActivationInput = "tanh",
    weight_var: Number = 1.0,
    bias_var: Number = 0.0,
    keep: Number = 1.0,
    *,
    width: Count = 500,
    depth: Count = 50,
    instances: Count = 100,
    q0: Number = 1.0,
    c0: Number = 0.0,
    weights: Name = "implied",
    seed: Count = 0,
    dtype: DtypeInput = torch.float64,
    device: DeviceInput = "cpu",
    memory: Number = 1e9,
    progress: ProgressInput | None = None,
) -> pd.DataFrame:
    """Measure `instances` random networks.

    The result has one row for each layer and quantity, with mean, var and se over networks.

    Args:
        activation: A name of `theory.activations.names()`, or any elementwise function.
        weight_var: Variance of a weight times the width, as in `theory.MeanField`.
        bias_var: Variance of a bias.
        keep: Keep rate of dropout, 1 minus the dropout rate.
        width: Width of every network.
        depth: Depth of every network.
        instances: Number of networks, each with other weights, masks and inputs.
        q0: Mean square of both inputs, exact for every pair.
        c0: Correlation of the two inputs, exact for every pair.
        weights: "drawn" forms weight matrices. "implied" does not, and has the same distribution.
        seed: Seed of all random numbers; the global state of torch does not change.
        dtype: Precision of the computation.
        device: Device of the computation.
        memory: Approximate number of bytes to use at once; networks are computed in portions.
        progress: True for a progress bar, or a function of the number of finished networks, the
            number of all networks, and a word.
    """
    chosen = WEIGHTS[one_of(weights, WEIGHTS, "weights")]
    numbers = _numbers(weight_var=weight_var, bias_var=bias_var, keep=keep, q0=q0, c0=c0)
    width = count(width, "width", least=2)
    depth = count(depth, "depth")
    instances = count(instances, "instances", least=2)
    seed = count(seed, "seed", least=0)
    phi, slope = value_and_slope(activations.get(activation))
    networks = Networks(
        phi=phi,
        slope=slope,
        weight_var=numbers["weight_var"],
        bias_var=numbers["bias_var"],
        keep=numbers["keep"],
        width=width,
        depth=depth,
        weights=chosen,
    )
    memory = real(memory, "memory", above=0)
    itemsize = _precision(dtype)
    device = _place(device)
    progress_report = _progress_report(progress)
    each = depth * (chosen.bytes(width, itemsize) + LIVE * width * itemsize)
    generator = Generator(device).manual_seed(seed)
    values: list[Tensor] = []
    done = 0
    with progress_report as report:
        for portion in _portions(instances, max(1, int(memory / each))):
            inputs = _inputs(portion, width, numbers["q0"], numbers["c0"], generator, dtype)
            values.append(_measure(networks, inputs, generator).cpu())
            done += portion
            report(done, instances, "networks")
    return _frame(
        torch.cat(values).numpy(), provenance={"seed": seed, "weights": chosen.__name__.lower()}
    )


def _progress_report(progress: ProgressInput | None) -> AbstractContextManager[Report]:
    """Return a progress bar, or the user's function."""
    if progress is True:
        return bar("networks")
    if progress is None or progress is False:
        return nullcontext(lambda done, total, what: None)
    if not callable(progress):
        message = f"progress: expected True or a function of (done, total, what), got {progress!r}"
        raise InputError(message, "wrong-type", argument="progress")
    return nullcontext(progress)


def _precision(dtype: DtypeInput) -> int:
    """Return the number of bytes of one number."""
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float32, torch.float64):
        message = f"dtype: expected torch.float32 or torch.float64, got {dtype!r}"
        raise InputError(message, argument="dtype")
    return dtype.itemsize


def _place(device: DeviceInput) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError) as error:
        message = f"device: expected one that torch can use here, such as 'cpu'; got {device!r}"
        raise InputError(message, argument="device") from error


def variance_law(frame: pd.DataFrame, quantity: Name, *, confidence: Number = 0.99) -> Fit:
    """Fit the power in V = k m^power, for variance V and mean m over networks: S1 figures 4 and 5.

    The fit is over layers. Erratum S1.9: the power is near 2, but not exactly 2, since V/m^2 grows
    with the distance from the output.
    """
    if not isinstance(frame, pd.DataFrame):
        message = f"frame: expected the table that dropout_metrics returns, got {frame!r}"
        raise InputError(message, "wrong-type", argument="frame")
    chosen = frame["quantity"] == one_of(quantity, QUANTITIES, "quantity")
    lines = cast(pd.DataFrame, frame[chosen])
    mean = np.abs(lines["mean"].to_numpy(float))
    var = lines["var"].to_numpy(float)
    wrong = ~((mean > 0) & (var > 0) & np.isfinite(mean) & np.isfinite(var))
    if len(lines) < FEWEST_LAYERS or wrong.any() or len(np.unique(mean)) < FEWEST_LAYERS:
        if wrong.any():
            got = f"{int(wrong.sum())} of {len(lines)} that are not above 0"
        else:
            got = f"{len(np.unique(mean))} different"
        message = (
            f"frame: expected different means and variances of {quantity} above 0 in at least"
            f" {FEWEST_LAYERS} layers, got {got}; measure deeper networks, more than one network,"
            " or leave those layers out"
        )
        raise InputError(message, argument="frame")
    return fit_exponent(mean, var, confidence=confidence, correction=False)


def _measure(networks: Networks, inputs: Tensor, generator: Generator) -> Tensor:
    """Return the quantities: (networks, depth, quantities)."""
    signals = []
    layers = []
    for layer in _forward(networks, inputs, generator):
        layers.append(layer)
        signals.append(_signals(layer.z))
    gradients = [_gradients(delta, x, scale) for delta, x, scale in _backward(networks, layers)]
    return torch.cat([torch.stack(signals, 1), torch.stack(gradients[::-1], 1)], dim=-1)


@dataclass(frozen=True)
class _Layer:
    """One layer of all networks, after the forward pass."""

    weights: Weights
    open: Tensor  # p / rho
    x: Tensor
    z: Tensor


def _forward(networks: Networks, y: Tensor, generator: Generator) -> Iterator[_Layer]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=y.dtype, device=y.device)

    for level in range(1, networks.depth + 1):
        weights = networks.weights(networks.weight_var, generator)
        uniform = torch.rand(y.shape, generator=generator, dtype=y.dtype, device=y.device)
        opening = (uniform < networks.keep).to(y.dtype) / networks.keep
        x = opening * y
        z = weights.forward(x) + networks.bias_var**0.5 * normal(len(y), 1, networks.width)
        y = networks.phi(z)
        if not bool(torch.isfinite(y).all()):
            message = (
                f"depth: signals overflow {y.dtype} in layer {level}; pass a smaller depth or"
                " weight_var"
            )
            raise InputError(message, "signals-lost", argument="depth")
        yield _Layer(weights, opening, x, z)


def _backward(networks: Networks, layers: list[_Layer]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield delta, x and the logarithm of delta's scale, from the last layer to the first.

    Backpropagation is linear. So deltas are rescaled to order one in every layer, and do not
    underflow in hundreds of layers.
    """
    last = layers[-1]
    delta = 2 * networks.phi(last.z) * networks.slope(last.z)
    scale = torch.zeros(len(delta), dtype=torch.float64, device=delta.device)
    while layers:
        layer = layers.pop()  # its weights are no longer needed afterwards
        largest = delta.abs().amax(dim=(1, 2))
        largest = torch.where(largest > 0, largest, torch.ones_like(largest))
        delta = delta / largest[:, None, None]
        scale = scale + largest.double().log()
        yield delta, layer.x, scale
        if layers:
            delta = networks.slope(layers[-1].z) * layer.open * layer.weights.backward(delta)


def _signals(z: Tensor) -> Tensor:
    """Return q_aa, q_ab, c_ab of each network."""
    a, b = z.double().unbind(1)
    q_aa = (a * a).mean(-1)
    q_bb = (b * b).mean(-1)
    q_ab = (a * b).mean(-1)
    size = (q_aa * q_bb).sqrt()
    divisor = torch.where(size > 0, size, 1)
    c_ab = torch.where(size > 0, q_ab / divisor, 1)  # two zero signals are equal
    return torch.stack([q_aa, q_ab, c_ab.clamp(-1, 1)], dim=-1)


def _gradients(delta: Tensor, x: Tensor, scale: Tensor) -> Tensor:
    """Return g_aa, g_ab, abs_g_ab, l1_g_ab of each network."""
    delta_a, delta_b = delta.double().unbind(1)
    x_a, x_b = x.double().unbind(1)
    deltas = delta_a * delta_b
    inputs = x_a * x_b
    g_aa = _scaled((delta_a * delta_a).mean(-1) * (x_a * x_a).mean(-1), scale)
    g_ab = _scaled(deltas.mean(-1) * inputs.mean(-1), scale)
    l1 = _scaled(deltas.abs().mean(-1) * inputs.abs().mean(-1), scale)
    return torch.stack([g_aa, g_ab, g_ab.abs(), l1], dim=-1)


def _scaled(product: Tensor, scale: Tensor) -> Tensor:
    """Multiply by the square of delta's scale; zeros stay zero, also where that overflows."""
    return torch.where(product == 0, product, product * torch.exp(2 * scale))


def _inputs(
    networks: int, width: int, q0: float, c0: float, generator: Generator, dtype: torch.dtype
) -> Tensor:
    """Return inputs (networks, 2, width) with random directions, exact lengths and correlation."""
    raw = torch.randn(networks, 2, width, generator=generator, dtype=dtype, device=generator.device)
    first = raw[:, 0] / raw[:, 0].norm(dim=-1, keepdim=True)
    normal = raw[:, 1] - (raw[:, 1] * first).sum(-1, keepdim=True) * first
    normal = normal / normal.norm(dim=-1, keepdim=True)
    pair = torch.stack([first, c0 * first + (1 - c0**2) ** 0.5 * normal], dim=1)
    return pair * (q0 * width) ** 0.5


def _portions(number: int, size: int) -> Iterator[int]:
    for start in range(0, number, size):
        yield min(size, number - start)


def _numbers(**values: Number) -> dict[str, float]:
    """Return the values as floats; raise an InputError if one is no number or out of range."""
    result = {}
    for name, value in values.items():
        xp, number = together(**{name: value})
        if number.ndim:
            message = (
                f"{name}: expected one number, got shape {tuple(number.shape)}; call once for each"
            )
            raise InputError(message, argument=name)
        if name == "keep":
            keep_rate(xp, number)
        elif name == "c0":
            within(xp, number, -1, 1, name, "it is a correlation")
        else:
            variance(xp, number, name)
        result[name] = float(number)
    return result


def _frame(values: np.ndarray, provenance: Mapping[str, object]) -> pd.DataFrame:
    layers = range(1, values.shape[1] + 1)
    rows = [(layer, quantity) for layer in layers for quantity in QUANTITIES]
    with np.errstate(over="ignore", invalid="ignore"):
        mean = values.mean(0).ravel()
        var = values.var(0, ddof=1).ravel()
    table = records.table(rows, ["layer", "quantity"], {**provenance, **records.VERSIONS})
    frame = table.assign(mean=mean, var=var, se=(var / len(values)) ** 0.5)
    frame.attrs["units"] = {"mean, var, se": "over networks, in the units of S1 (8)"}
    return frame
