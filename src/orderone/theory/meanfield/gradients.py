"""Sizes of gradients, layer by layer: exact for linear networks, exponential laws for all others.

    g_aa^l = E (dE_a / dW^l_ij)^2,     g_ab^l = E (dE_a / dW^l_ij)(dE_b / dW^l_ij)
                                       S1 (8), signed

Linear networks, loss |z^L|^2 (erratum S1.8: the sum of squares), with chi_1 = weight_var / keep:

    g_aa^l = (q^(l-1) / keep) 4 chi_1^k [q^L + (1 / keep) sum_{j=1..k} chi_1^j q^(L-j)],   k = L - l
    g_ab^l =  q_ab^(l-1)      4 weight_var^k [q_ab^L + sum_{j=1..k} (weight_var / keep^2)^j
                              q_ab^(L-j)]

Erratum S1.3: (12) of the paper is the case in which every layer, the input too, has the lengths of
the fixed point. These are what is taken if no q0 is given. Erratum S1.5: g_ab decays as chi_2^k
only if weight_var < keep^2, else as chi_1^(2k).

Erratum S1.4: one network's g_ab has noise of its own. With u = delta_a delta_b / N and v = delta_a
delta_a / N, a layer adds the variance (weight_var v / keep)^2 / N to u and multiplies what was
there by weight_var^2, and v by chi_1. So Var(u) / v^2 comes to 1 / (N (1 - keep^2)), and with the
overlap of inputs, c* keep,

    std(g_ab^l) = c* keep (1 - keep^2)^(-1/2) N^(-1/2) g_aa^l,        1 << L - l << N
"""

import math
from typing import Any, NamedTuple

import numpy as np

from orderone.core import checks
from orderone.core.arrays import together
from orderone.core.exact import count
from orderone.core.inputs import Count, Number
from orderone.core.reals import real
from orderone.theory.meanfield.lengths import homogeneous
from orderone.theory.meanfield.parameters import parameters


class GradientMetrics(NamedTuple):
    """One entry for each layer 1 .. depth: entry l - 1 is layer l. Also by name:
    metrics["g_aa"]."""

    g_aa: np.ndarray
    g_ab: np.ndarray

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return getattr(self, key)
        return tuple.__getitem__(self, key)


def linear_gradient_metrics(
    weight_var: Number,
    bias_var: Number,
    keep: Number,
    depth: Count,
    q0: Number | None = None,
    qab0: Number | None = None,
) -> GradientMetrics:
    """g_aa and g_ab of a linear dropout network, layers 1 to depth: S1 (12) in the form of erratum
    S1.3.

    `q0` is the squared length of an input per unit, `qab0` the overlap of two (q0 if it is not
    given: the same input twice, under masks of their own). Without them, lengths and overlap are
    those of the fixed point, as for `MeanField`: infinite unless weight_var < keep, erratum S1.2.
    With weight_var = keep and no bias every length stays as it is, and 1 is taken.
    """
    w, b, rho = _parameters(weight_var, bias_var, keep)
    depth = count(depth, "depth")
    q, q_ab = _lengths(w, b, rho, depth, q0, qab0)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        g_aa = 4 / rho * q[:-1] * _backwards(q, w / rho, w / rho, 1 / rho)
        g_ab = 4 * q_ab[:-1] * _backwards(q_ab, w, float(np.divide(w / rho, rho)), 1.0)
    return GradientMetrics(g_aa, g_ab)


def linear_noise_level(keep: Number, correlation: Number) -> float:
    """sqrt(N) std(g_ab) / g_aa of linear networks far from the output: the floor on which abs(g_ab)
    lies, erratum S1.4.

    `correlation` is that of two signals, c* at the fixed point. inf without dropout, where noise
    adds up for ever.
    """
    keep = real(keep, "keep", above=0, most=1)
    correlation = real(correlation, "correlation", least=-1, most=1)
    if keep == 1:
        return math.inf
    return abs(correlation) * keep / math.sqrt(1 - keep**2)


def _backwards(q: np.ndarray, factor: float, ratio: float, weight: float) -> np.ndarray:
    """factor^k [q^L + weight sum_{j=1..k} ratio^j q^(L-j)] for layers l = L - k = 1 .. L, as one
    recursion from the top."""
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
    w: float, b: float, rho: float, depth: int, q0: Any, qab0: Any
) -> tuple[np.ndarray, np.ndarray]:
    """q and q_ab at layers 0 .. depth."""
    if q0 is None:
        fixed, overlap = (
            float(homogeneous(np.array(slope), np.array(b))) for slope in (w / rho, w)
        )
        start = fixed
        q = np.full(depth + 1, fixed)
    else:
        start = overlap = _start(
            q0, "q0", 0.0, np.finfo(float).max, "give a squared length per unit"
        )
        q = _recursion(start, w / rho, b, depth)
    if qab0 is not None:
        overlap = _start(qab0, "qab0", -start, start, "an overlap is at most the squared length")
    return q, _recursion(overlap, w, b, depth)


def _recursion(start: float, slope: float, shift: float, depth: int) -> np.ndarray:
    values = [start]
    for _ in range(depth):
        values.append(
            slope * values[-1] + shift
        )  # grows without bound, or comes back to the fixed point
    return np.array(values)


def _parameters(weight_var: Any, bias_var: Any, keep: Any) -> tuple[float, float, float]:
    _, w, b, rho = parameters(weight_var=weight_var, bias_var=bias_var, keep=keep)
    for name, value in (("weight_var", w), ("bias_var", b), ("keep", rho)):
        if value.ndim:
            raise ValueError(
                f"{name}: expected one number, got shape {tuple(value.shape)}; call once for each"
            )
    return float(w), float(b), float(rho)


def _start(value: Any, name: str, low: float, high: float, remedy: str) -> float:
    xp, value = together(**{name: value})
    array = checks.within(xp, value, low, high, name, remedy)
    if array.ndim:
        raise ValueError(
            f"{name}: expected one number, got shape {tuple(array.shape)}; call once for each"
        )
    return float(array)
