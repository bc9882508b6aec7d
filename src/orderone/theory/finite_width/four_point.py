"""Variance of a neuron and its fourth cumulant in an MLP of finite width, to order 1/n.

    z^1 = W x + b,   z^(l+1) = W phi(z^l) + b,   W_ij ~ N(0, weight_var / n_l),  b ~ N(0, bias_var)

Given the layer before, neurons are independent Gaussians of a common random variance g_l. To
leading order in 1/n,

    K_(l+1) = bias_var + weight_var E[phi^2]                              E over N(0, K_l)
    V_(l+1) = P^2 V_l + weight_var^2 (E[phi^4] - E[phi^2]^2) / n_l
    D_(l+1) = P D_l + weight_var E[phi^2 (z^4 - 6 K z^2 + 3 K^2)] / (8 K^4) V_l
    P       = dK_(l+1) / dK_l = weight_var E[phi^2 (z^2 - K)] / (2 K^2)

K + D is the mean of g, and V its variance: the four-point vertex. The cumulant of four different
pairs is E[z_i^2 z_j^2] - E[z_i^2] E[z_j^2] = V for i != j, and 3 V for i = j. K is infinite width;
D and V are sums over layers, of order depth / width.

Roberts, Yaida & Hanin 2022, "The Principles of Deep Learning Theory", (4.90), (4.112), (4.115) for
one input. S2 (1.48)-(1.52) uses the same argument: a mean over n neurons, such as the variance that
a layer norm divides by, fluctuates by 1/n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Function, Name, Number, UserInput
from orderone.core.reals import real
from orderone.theory import activations
from orderone.theory.activations import Activation
from orderone.theory.gaussian import expect
from orderone.theory.gaussian.functions import Values

Widths: TypeAlias = Annotated[Sequence[int], UserInput]
LARGEST = 1e100  # of K; beyond, fourth powers are infinite


@dataclass(frozen=True, eq=False)
class FourPoint:
    """Moments of layers 1 .. depth, one entry per layer."""

    variance: np.ndarray  # K, of infinite width
    correction: np.ndarray  # D: the variance is K + D to order 1/n
    vertex: np.ndarray  # V, the variance of the variance

    @property
    def kurtosis(self) -> np.ndarray:
        """Return E[z^4] / E[z^2]^2 - 3 of a neuron, to order 1/n."""
        return 3 * self.vertex / self.variance**2


def four_point(
    activation: Name | Function,
    widths: Widths,
    weight_var: Number = 1.0,
    bias_var: Number = 0.0,
    q0: Number = 1.0,
) -> FourPoint:
    """Return variance, correction and vertex of every layer.

    `widths` are the numbers of neurons of layers 1, 2, ..; `q0` is the squared length of the input
    per feature.
    """
    phi = activations.get(activation)
    sizes = read_widths(widths)
    if not sizes:
        raise InputError(
            f"widths: expected the width of each layer, such as [64, 64]; got {widths!r}",
            argument="widths",
        )
    w = real(weight_var, "weight_var", above=0)
    b = real(bias_var, "bias_var", least=0)
    K = b + w * real(q0, "q0", above=0)
    D = 0.0
    V = 0.0
    rows = [(K, D, V)]
    for n in sizes[:-1]:
        if not 0 < K < LARGEST:
            raise InputError(
                f"weight_var: expected lengths that stay finite, got {K:.3g} in layer {len(rows)};"
                " take a smaller weight_var",
                argument="weight_var",
            )
        K, D, V = _next_layer(phi, K, D, V, n, w, b)
        rows.append((K, float(D), float(V)))
    if not np.isfinite(rows).all():
        raise InputError(
            "weight_var: expected moments that stay finite, got infinite ones; take a smaller"
            " weight_var, or an activation that grows more slowly",
            argument="weight_var",
        )
    return FourPoint(*np.array(rows).T)


def read_widths(widths: Widths) -> list[int]:
    """Return the numbers of neurons; empty if `widths` is not a sequence."""
    try:
        return [count(width, "widths") for width in widths]
    except TypeError:
        return []


def _next_layer(
    phi: Activation, K: float, D: float, V: float, n: int, w: float, b: float
) -> tuple[float, float, float]:
    """Return K, D and V of the layer after one with n neurons; w and b are weight_var, bias_var."""

    def square(x: np.ndarray) -> np.ndarray:
        return np.asarray(phi(x)) ** 2

    second = np.float64(_mean(square, K))  # numpy's numbers overflow to infinity
    fourth = _mean(lambda x: square(x) ** 2, K)
    P = w * _mean(lambda x: square(x) * (x**2 / K - 1), K) / (2 * K)
    bend = w * _mean(lambda x: square(x) * ((x**2 / K - 6) * x**2 / K + 3), K)
    with np.errstate(all="ignore"):
        next_D = P * D + bend * V / (8 * K**2)
        next_V = np.float64(P) ** 2 * V + w**2 * (fourth - second**2) / n
        next_K = b + w * second
    return float(next_K), next_D, next_V


def _mean(f: Values, variance: float) -> float:
    """Return E f(x), x ~ N(0, variance)."""
    return float(expect(f, variance).value)
