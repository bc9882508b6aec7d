"""Averages over two inputs at the fixed point, from which means and noise of gradients follow.

With psi = phi phi', the gradient of the loss sum_i phi(z^L_i)^2 has, at the last layer,

    g_aa = (4 / keep) E[phi^2] E[psi^2]
    g_ab = 4 E[phi_a phi_b] E[psi_a psi_b]

because independent masks cancel 1 / keep^2. Their ratio is keep c*^2 for linear networks.

The noise of u = delta_a . delta_b / N, in units of v = delta_a . delta_a / N. Given the layer
above, a layer draws N products of two Gaussians with the covariance of the layer above, so that
s = N Var(u) / v^2 obeys

    s_0 = Var(psi_a psi_b) / E[psi^2]^2
    s_k = r^2 s_(k-1) + A (1 + 2 x_(k-1)) - r^2 x_(k-1)
    A   = E[phi'_a^2 phi'_b^2] / E[phi'^2]^2,     r = chi_2 / chi_1,     x_k = (u_k / v_k)^2

With x_k = r^(2 k) x_0 the solution is

    s_k = r^(2k) s_0 + A (1 - r^(2k)) / (1 - r^2) + (2 A - r^2) x_0 k r^(2k - 2)

and std(g_ab^l) / g_aa^l = (keep E[phi_a phi_b] / E[phi^2]) sqrt(s_k / N). Far from the output s is
A / (1 - r^2): 1 / (1 - keep^2) for linear networks. Without dropout r may be 1, and s grows without
bound.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks"; errata S1.4, S1.5.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orderone.core.inputs import Array
from orderone.theory.activations import Activation
from orderone.theory.gaussian import expect_pair
from orderone.theory.gaussian.functions import Values

SHORTEST = 1e-24  # replaces smaller lengths: phi is linear there
LONGEST = 1e60
EQUAL = 1e-9  # rates closer than this are equal


@dataclass(frozen=True)
class GradientOverlaps:
    """Overlaps of two inputs, in units of those of one, and the noise of their gradients."""

    signals: float  # E[phi_a phi_b] / E[phi^2]
    outputs: float  # E[psi_a psi_b] / E[psi^2]
    first_noise: float  # s_0
    layer_noise: float  # A
    rate: float  # r

    def ratio(self, keep: float) -> float:
        """Return g_ab / g_aa at the last layer."""
        return keep * self.signals * self.outputs

    def noise(self, keep: float, k: Array) -> Array:
        """Return sqrt(N) std(g_ab) / g_aa at distance k from the output."""
        if not np.isfinite([self.first_noise, self.layer_noise, self.rate]).all():
            return np.full(np.shape(k), np.inf)
        square = self.rate**2
        power = square**k
        if abs(1 - square) < EQUAL:
            terms = k
        else:
            terms = (1 - power) / (1 - square)
        correlated = (2 * self.layer_noise - square) * self.outputs**2 * k
        before = np.where(np.asarray(k) > 0, square ** np.maximum(np.asarray(k) - 1, 0), 0.0)
        variance = power * self.first_noise + self.layer_noise * terms + correlated * before
        return keep * self.signals * np.sqrt(np.maximum(variance, 0))


def gradient_overlaps(
    phi: Activation, q: float, gap: float, chi1: float, chi2: float
) -> GradientOverlaps:
    """Return the overlaps of two signals of length `q` and correlation 1 - `gap`."""
    if phi.homogeneous is not None:
        q = 1.0
    return _overlaps(phi, min(max(q, SHORTEST), LONGEST), gap, chi1, chi2)


@lru_cache(maxsize=64)
def _overlaps(phi: Activation, q: float, gap: float, chi1: float, chi2: float) -> GradientOverlaps:
    root = float(np.sqrt(q))
    size = float(np.sqrt(phi.second_moment(q))) or 1.0

    def signal(z: np.ndarray) -> np.ndarray:
        return np.asarray(phi(root * z)) / size

    def slope(z: np.ndarray) -> np.ndarray:
        return np.asarray(phi.derivative(root * z))

    def output(z: np.ndarray) -> np.ndarray:
        return signal(z) * slope(z)

    square = _average(output, gap=0.0)
    fourth = _average(lambda z: output(z) ** 2, gap)
    pair = _average(output, gap)
    slopes = _average(slope, gap=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        outputs = np.divide(pair, square)
        return GradientOverlaps(
            signals=float(phi.pair(q, q, gap)) / size**2,
            outputs=float(outputs),
            first_noise=float(np.divide(fourth, square**2) - outputs**2),
            layer_noise=float(np.divide(_average(lambda z: slope(z) ** 2, gap), slopes**2)),
            rate=float(np.divide(chi2, chi1)),
        )


def _average(f: Values, gap: float) -> float:
    """Return E f(x) f(y) of unit variances."""
    return float(expect_pair(f, f, 1.0, gap).value)
