"""Pairs of ELU and SELU at one length, by integrating E phi'' phi'' over the gap g = 1 - c.

By Price's theorem, applied twice,

    E phi'(x) phi'(y)              = E phi'^2 - q I_0
    E phi(x)^2 - E phi(x) phi(y)   = q [g E phi'^2 - q I_1]
    I_0                            = integral_0^g K(t) dt
    I_1                            = integral_0^g (g - t) K(t) dt
    K                              = E phi''(x) phi''(y)

phi'' / scale is alpha e^x for x < 0, plus 1 - alpha times a point mass at 0, so that

    K / scale^2 = alpha^2 A + 2 alpha (1 - alpha) B + (1 - alpha)^2 / (2 pi q s)
    A           = E[e^(x + y); x, y < 0] = e^(q (2 - t)) [Q(h) - 2 T(h, a)]
    B           = erfcx(s sqrt(q / 2)) / (2 sqrt(2 pi q))

    s^2 = t (2 - t),     h = sqrt(q) (2 - t),     a^2 = t / (2 - t)

Q is the upper tail of a standard normal and T is Owen's function. Everything is smooth in sqrt(t).
Only small terms are subtracted, so a small gap loses no digits. For long signals A is a sum of
positive terms:

    A = e^(-q (2 - t)(1 - t)) [erfcx(h / sqrt 2) / 2]^2
        + integral_a^1 e^(-(u^2 - a^2) h^2 / 2) / (1 + u^2) du / pi

`numeric_pairs` treats even longer signals and negative correlations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TypeAlias

import numpy as np
from scipy.special import erfc, erfcx, owens_t

from orderone.core.arrays import as_numpy, like, together
from orderone.core.inputs import Array, ArrayLike
from orderone.theory.activations.base import AtLength
from orderone.theory.activations.numeric import Numeric
from orderone.theory.activations.numeric_pairs import NumericAtLength
from orderone.theory.activations.spectral import SMALLEST
from orderone.theory.gaussian.panels import legendre, segments

LONG = 12.0  # above this length e^(q/2) amplifies the rounding of A as a difference
LONGEST = 1e4  # above this length the integrand is too steep
NODES, WEIGHTS = legendre(24)
SPLIT, SPLIT_WEIGHTS = segments(np.array([0.0, 1 / 16, 1 / 4, 1.0]), 16)
INNER, INNER_WEIGHTS = legendre(32)
NEGLIGIBLE = 76.0  # e^-38 is negligible

# From q, gap, E phi^2, E phi'^2 to an average of pairs.
ClosedForm: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
Fallback: TypeAlias = Callable[[NumericAtLength, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Bent(Numeric):
    """Activation with closed forms of E phi'' phi'' for pairs of one length."""

    alpha: float = 1.0
    scale: float = 1.0

    def at(self, q: ArrayLike) -> AtLength:
        xp, q = together(q=q)
        lengths = np.maximum(as_numpy(q).ravel(), SMALLEST)
        moments = (self.second_moment(lengths), self.derivative_moment(lengths))
        return BentAtLength(self, q, xp, moments)


class BentAtLength(AtLength):
    """Pairs of one variance, with E phi^2 and E phi'^2 stored."""

    def __init__(
        self, activation: Bent, q: Array, xp: ModuleType, moments: tuple[np.ndarray, np.ndarray]
    ) -> None:
        super().__init__(activation, q, xp)
        self.moments = moments
        self.phi = activation

    def select(self, rows: Array) -> "BentAtLength":
        moment, slope_moment = self.moments
        return BentAtLength(self.phi, self.q[rows], self.xp, (moment[rows], slope_moment[rows]))

    def output_gap(self, gap: Array) -> Array:
        return self._where_known(gap, self._gap, NumericAtLength.output_gap)

    def derivative_pair(self, gap: Array) -> Array:
        return self._where_known(gap, self._slope, NumericAtLength.derivative_pair)

    def _gap(
        self, q: np.ndarray, gap: np.ndarray, moment: np.ndarray, slope_moment: np.ndarray
    ) -> np.ndarray:
        t, curvature = self._curvatures(q, gap)
        remaining = 1 - t / np.where(gap > 0, gap, 1.0)[:, None]  # (g - t) / g
        return q / moment * gap * (slope_moment - (remaining * curvature).sum(-1))

    def _slope(
        self, q: np.ndarray, gap: np.ndarray, _: np.ndarray, slope_moment: np.ndarray
    ) -> np.ndarray:
        return slope_moment - self._curvatures(q, gap)[1].sum(-1)

    def _curvatures(self, q: np.ndarray, gap: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return t and q K(t) dt at the nodes of an integral from 0 to the gap, over sqrt(t)."""
        long = bool(len(q)) and q[0] > LONG
        nodes, weights = (SPLIT, SPLIT_WEIGHTS) if long else (NODES, WEIGHTS)
        root = np.sqrt(gap)[:, None] * nodes
        alpha = self.phi.alpha
        t = root**2
        q = q[:, None]
        A = _below_long(q, t) if long else _below(q, t)
        s = root * np.sqrt(2 - t)
        q_B = erfcx(s * np.sqrt(q / 2)) * np.sqrt(q / (8 * np.pi))
        smooth = alpha**2 * q * A + 2 * alpha * (1 - alpha) * q_B
        mass = (1 - alpha) ** 2 / (2 * np.pi * np.sqrt(2 - t))  # times dt / sqrt(t) = 2 d sqrt(t)
        return t, self.phi.scale**2 * (smooth * root + mass) * 2 * np.sqrt(gap)[:, None] * weights

    def _where_known(self, gap: Array, closed: ClosedForm, fallback: Fallback) -> Array:
        """Apply the closed form to moderate lengths and gaps, and the fallback to the others."""
        q = np.maximum(as_numpy(self.q).ravel(), SMALLEST)
        gaps = as_numpy(gap).ravel()
        moment, slope_moment = self.moments
        known = (q <= LONGEST) & (gaps <= 1)
        result = np.empty(len(gaps))
        for rows in (known & (q <= LONG), known & (q > LONG)):
            result[rows] = closed(q[rows], gaps[rows], moment[rows], slope_moment[rows])
        if not known.all():
            result[~known] = fallback(NumericAtLength(self.phi, q[~known], np), gaps[~known])
        return like(result.reshape(np.shape(gap)), gap, self.xp)


def _below(q: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return A, by Owen's function."""
    h = np.sqrt(q) * (2 - t)
    return np.exp(q * (2 - t)) * (erfc(h / np.sqrt(2)) / 2 - 2 * owens_t(h, np.sqrt(t / (2 - t))))


def _below_long(q: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return A, as a sum."""
    h = np.sqrt(q) * (2 - t)
    square = t / (2 - t)
    low = np.sqrt(square)
    high = np.minimum(np.sqrt(square + NEGLIGIBLE / h**2), 1.0)
    u = low[..., None] + (high - low)[..., None] * INNER
    terms = np.exp((square[..., None] - u**2) * (h**2 / 2)[..., None]) / (1 + u**2)
    tails = np.exp(-q * (2 - t) * (1 - t)) * (erfcx(h / np.sqrt(2)) / 2) ** 2
    return tails + terms @ INNER_WEIGHTS * (high - low) / np.pi
