"""Sizes of gradients in each layer of a linear network, exactly; `laws` treats all others.

    g_aa^l = E (dE_a / dW^l_ij)^2
    g_ab^l = E (dE_a / dW^l_ij)(dE_b / dW^l_ij)                                       S1 (8), signed

Linear networks, loss |z^L|^2 (erratum S1.8: the sum of squares), with chi_1 = weight_var / keep:

    g_aa^l = 4 (q^(l-1) / keep) chi_1^k [q^L + (1 / keep) sum_{j=1..k} chi_1^j q^(L-j)]
    g_ab^l = 4 q_ab^(l-1) weight_var^k [q_ab^L + sum_{j=1..k} (weight_var / keep^2)^j q_ab^(L-j)]
    k      = L - l

Erratum S1.3: (12) of the paper is the case in which every layer, the input too, has the lengths of
the fixed point. These are the default without q0. Erratum S1.5: g_ab decays as chi_2^k only if
weight_var < keep^2, else as chi_1^(2k).

Erratum S1.4: g_ab of one network is noisy. With u = delta_a delta_b / N and
v = delta_a delta_a / N, a layer multiplies Var(u) by weight_var^2 and v by chi_1, and adds
(weight_var v / keep)^2 / N to Var(u). So Var(u) / v^2 tends to 1 / (N (1 - keep^2)), and with the
overlap of inputs, c* keep,

    std(g_ab^l) = c* keep (1 - keep^2)^(-1/2) N^(-1/2) g_aa^l,        1 << L - l << N

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

import math
from typing import NamedTuple, SupportsIndex

import numpy as np

from orderone.core import checks
from orderone.core.arrays import together
from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Array, ArrayLike, Count, Number
from orderone.core.reals import real
from orderone.theory.meanfield.lengths import homogeneous
from orderone.theory.meanfield.parameters import parameters


class GradientMetrics(NamedTuple):
    """Gradient metrics of layers 1 .. depth; entry l - 1 is layer l. Also metrics["g_aa"]."""

    g_aa: np.ndarray
    g_ab: np.ndarray

    def __getitem__(self, key: str | SupportsIndex | slice) -> Array:
        if isinstance(key, str):
            return getattr(self, key)
        return tuple.__getitem__(self, key)


class GradientVariances(NamedTuple):
    """Variance and covariance of the gradients delta of layers 1 .. depth, entry by entry."""

    q_aa: np.ndarray
    q_ab: np.ndarray


def linear_gradient_metrics(
    weight_var: Number,
    bias_var: Number,
    keep: Number,
    depth: Count,
    q0: Number | None = None,
    qab0: Number | None = None,
) -> GradientMetrics:
    """Return g_aa and g_ab of a linear dropout network, layers 1 to depth.

    This is S1 (12) in the form of erratum S1.3.

    `q0` is the squared length of an input per unit, `qab0` the overlap of two inputs, by default
    q0: the same input twice, with different masks. Without them, lengths and overlap are those of
    the fixed point, as for `MeanField`: infinite unless weight_var < keep, erratum S1.2. With
    weight_var = keep and no bias every length is a fixed point; the default is 1.
    """
    w, b, rho = _parameters(weight_var, bias_var, keep)
    depth = count(depth, "depth")
    q, q_ab = _lengths(w, b, rho, depth, q0, qab0)
    delta = linear_gradient_variances(w, b, rho, depth, q0, qab0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return GradientMetrics(q[:-1] / rho * delta.q_aa, q_ab[:-1] * delta.q_ab)


def linear_gradient_variances(
    weight_var: Number,
    bias_var: Number,
    keep: Number,
    depth: Count,
    q0: Number | None = None,
    qab0: Number | None = None,
) -> GradientVariances:
    """Return E delta_a^2 and E delta_a delta_b, delta = dE / dz, of layers 1 to depth.

    These are q~_aa and q~_ab of S1 (S8)-(S11) and (S21)-(S24). The arguments are those of
    `linear_gradient_metrics`, which multiplies them by the lengths of the layer before.
    """
    w, b, rho = _parameters(weight_var, bias_var, keep)
    depth = count(depth, "depth")
    q, q_ab = _lengths(w, b, rho, depth, q0, qab0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        q_aa = 4 * _backwards(q, w / rho, w / rho, 1 / rho)
        overlap = 4 * _backwards(q_ab, w, float(np.divide(w / rho, rho)), 1.0)
    return GradientVariances(q_aa, overlap)


def linear_noise_level(keep: Number, correlation: Number) -> float:
    """Return sqrt(N) std(g_ab) / g_aa of linear networks far from the output: erratum S1.4.

    abs(g_ab) levels off there. `correlation` is that of two signals, c* at the fixed point. The
    result is inf without dropout, where noise accumulates without bound.
    """
    keep = real(keep, "keep", above=0, most=1)
    correlation = real(correlation, "correlation", least=-1, most=1)
    if keep == 1:
        return math.inf
    return abs(correlation) * keep / math.sqrt(1 - keep**2)


def _backwards(q: np.ndarray, factor: float, ratio: float, weight: float) -> np.ndarray:
    """Return factor^k [q^L + weight sum_{j=1..k} ratio^j q^(L-j)] for layers l = L - k = 1 .. L.

    The recursion runs from the last layer to the first.
    """
    depth = len(q) - 1
    total = np.empty(depth)
    power = np.empty(depth)
    added = q[depth]
    scale = 1.0
    step = 1.0
    for k in range(depth):
        if k:
            step *= ratio
            added += weight * step * q[depth - k]
            scale *= factor
        total[depth - 1 - k] = added
        power[depth - 1 - k] = scale
    return np.where(power == 0, 0.0, power * total)


def _lengths(
    w: float, b: float, rho: float, depth: int, q0: Number | None, qab0: Number | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return q and q_ab at layers 0 .. depth."""
    if q0 is None:
        start = float(homogeneous(np.array(w / rho), np.array(b)))
        overlap = float(homogeneous(np.array(w), np.array(b)))
        q = np.full(depth + 1, start)
    else:
        largest = np.finfo(float).max
        start = _start(q0, "q0", 0.0, largest, "pass a squared length per unit")
        overlap = start
        q = _recursion(start, w / rho, b, depth)
    if qab0 is not None:
        overlap = _start(qab0, "qab0", -start, start, "an overlap is at most the squared length")
    return q, _recursion(overlap, w, b, depth)


def _recursion(start: float, slope: float, shift: float, depth: int) -> np.ndarray:
    """Return the values at layers 0 .. depth; they diverge or tend to the fixed point."""
    values = [start]
    for _ in range(depth):
        values.append(slope * values[-1] + shift)
    return np.array(values)


def _parameters(
    weight_var: ArrayLike, bias_var: ArrayLike, keep: ArrayLike
) -> tuple[float, float, float]:
    _, w, b, rho = parameters(weight_var=weight_var, bias_var=bias_var, keep=keep)
    for name, value in (("weight_var", w), ("bias_var", b), ("keep", rho)):
        if value.ndim:
            raise InputError(
                f"{name}: expected one number, got shape {tuple(value.shape)}; call once for each",
                argument=name,
            )
    return float(w), float(b), float(rho)


def _start(value: ArrayLike, name: str, low: float, high: float, remedy: str) -> float:
    xp, array = together(**{name: value})
    checks.within(xp, array, low, high, name, remedy)
    if array.ndim:
        raise InputError(
            f"{name}: expected one number, got shape {tuple(array.shape)}; call once for each",
            argument=name,
        )
    return float(array)
