"""Means of an activation over very short signals, from its Taylor series on both sides of zero.

    phi(x)      = sum_n a_n x^n for x > 0, with b_n for x < 0
    E phi(x)^2  = sum_k m_k q^(k/2)
    E phi'(x)^2 = sum_k d_k q^(k/2)
    m_k         = sum_{i+j=k} (a_i a_j + (-1)^k b_i b_j) E abs(z)^k / 2

Near the critical line of a short signal all leading terms of the length map cancel, and a term of
order q^2 decides. In differences of means it is lost to rounding; in sums of these terms it is not.
a_1 and b_1 are phi'(0), exactly.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial.polynomial import polyval

from orderone.core.inputs import Array
from orderone.theory.activations import Activation

SHORT = 1e-5  # signals of smaller length are short
TERMS = 8
RADIUS = 0.5
DEGREE = 16  # degree of the polynomial from which the series is computed
SMOOTH = 1e-13
AGREE = 1e-11
ROUNDING = 1e-14  # rounding of a coefficient, which grows with its power
NOTHING = 1e-12  # relative difference below which it is rounding


@dataclass(frozen=True, eq=False)
class Short:
    """Coefficients of powers of sqrt(q)."""

    moment: np.ndarray
    slope: np.ndarray

    def excess(self, rate: Array, bias_var: Array, q: Array) -> tuple[Array, Array]:
        """Return rate E phi^2 + bias_var - q, and the rounding in it."""
        root = np.sqrt(q)
        linear = rate * self.moment[2] - 1
        others = np.where(np.arange(len(self.moment)) == 2, 0.0, self.moment)
        with np.errstate(over="ignore"):
            bend = rate * polyval(root, others)
            size = np.abs(linear) * q + np.abs(bend) + bias_var
            return linear * q + bend + bias_var, 4 * np.finfo(float).eps * size

    def implied_bias(self, q: Array) -> Array:
        """Return q - E phi^2 / E phi'^2; q E phi'^2 and E phi^2 are subtracted term by term."""
        n = len(self.moment)
        difference = np.append(np.zeros(2), self.slope[: n - 2]) - self.moment
        difference[np.abs(difference) <= NOTHING * np.abs(self.moment)] = 0.0
        root = np.sqrt(q)
        return polyval(root, difference) / polyval(root, self.slope)


@lru_cache(maxsize=64)
def short_signals(phi: Activation) -> Short | None:
    """Return the series of phi; None if it has none, as for a root, or if its slope is 0."""
    if phi.homogeneous is not None or not np.isfinite(phi(np.array([-1e-9, 0.0, 1e-9]))).all():
        return None
    right, left = _taylor(phi)
    n = np.arange(1, TERMS)
    series = Short(_averages(right, left), _averages(n * right[1:], n * left[1:]))
    lengths = np.array([SHORT, SHORT / 10])
    roots = np.sqrt(lengths)
    same_moment = np.allclose(
        polyval(roots, series.moment), phi.second_moment(lengths), rtol=AGREE, atol=0
    )
    same_slope = np.allclose(
        polyval(roots, series.slope), phi.derivative_moment(lengths), rtol=AGREE, atol=0
    )
    if same_moment and same_slope and series.slope[0] > 0:
        return series
    return None


def _taylor(phi: Activation) -> tuple[np.ndarray, np.ndarray]:
    """Return a_0, ... and b_0, ...

    One series for both sides is more accurate; it is used where it is enough.
    """
    right_slope = float(phi.derivative(1e-300))
    left_slope = float(phi.derivative(-1e-300))
    both, residue = _powers(phi, -RADIUS, RADIUS)
    if residue > SMOOTH or right_slope != left_slope:
        right = _powers(phi, 0.0, RADIUS)[0]
        left = _powers(phi, -RADIUS, 0.0)[0]
    else:
        right = both
        left = both.copy()
    for side, slope in ((right, right_slope), (left, left_slope)):
        side[0] = float(phi(0.0))
        side[1] = slope
        rounding = ROUNDING * (4 / RADIUS) ** np.arange(TERMS) * np.abs(side).max()
        side[np.abs(side) <= rounding] = 0.0
    return right, left


def _powers(phi: Activation, low: float, high: float) -> tuple[np.ndarray, float]:
    """Return coefficients of powers of x from an interpolation, and its error between the nodes."""
    points = low + (high - low) * (np.polynomial.chebyshev.chebpts1(DEGREE + 1) + 1) / 2
    between = low + (high - low) * (np.polynomial.chebyshev.chebpts1(50) + 1) / 2
    with np.errstate(all="ignore"):
        fit = np.polynomial.Chebyshev.fit(
            points, np.asarray(phi(points)), DEGREE, domain=[low, high]
        )
        residue = np.abs(fit(between) - phi(between)).max() / np.abs(fit(between)).max()
    powers = fit.convert(kind=np.polynomial.Polynomial).coef[:TERMS]
    return np.pad(powers, (0, TERMS - len(powers))), float(residue)


def _averages(right: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return the mean of the square of a series, in powers of sqrt(q)."""
    n = min(TERMS, len(right))
    k = np.arange(n)
    moments = np.array(
        [2 ** (i / 2) * math.gamma((i + 1) / 2) / math.sqrt(math.pi) for i in range(n)]
    )
    moments[0::2] = np.cumprod(np.append(1.0, np.arange(1, n - 1, 2)))[: len(moments[0::2])]
    squares = np.convolve(right, right)[:n] + (-1.0) ** k * np.convolve(left, left)[:n]
    return squares * moments / 2
