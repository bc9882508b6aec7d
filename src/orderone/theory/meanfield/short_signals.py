"""What a very short signal sees of an activation: its Taylor series on both sides of zero, term by
term.

    phi(x) = sum_n a_n x^n for x > 0, with b_n for x < 0
    E phi(x)^2 = sum_k m_k q^(k/2),      E phi'(x)^2 = sum_k d_k q^(k/2)

where m_k = sum_{i+j=k} (a_i a_j + (-1)^k b_i b_j) E abs(z)^k / 2. Near the critical line of a short
signal all leading terms of the length map cancel, and what decides is a part q^2 of the length.
Differences of averages have lost it by then; sums of these terms have not. a_1 and b_1 are phi'(0),
exactly.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orderone.core.inputs import Array
from orderone.theory.activations import Activation

SHORT = 1e-5  # lengths below are short
TERMS = 8
RADIUS = 0.5
DEGREE = 16  # of the polynomial that the series is taken from
SMOOTH = 1e-13
AGREE = 1e-11
ROUNDING = 1e-14  # of a coefficient, which grows with its power
NOTHING = 1e-12  # a difference that is rounding


@dataclass(frozen=True, eq=False)
class Short:
    """Coefficients of powers of sqrt(q)."""

    moment: np.ndarray
    slope: np.ndarray

    def excess(self, rate: Array, bias_var: Array, q: Array) -> tuple[Array, Array]:
        """rate E phi^2 + bias_var - q, and the rounding in it."""
        root = np.sqrt(q)
        linear = rate * self.moment[2] - 1
        others = np.where(np.arange(len(self.moment)) == 2, 0.0, self.moment)
        with np.errstate(over="ignore"):
            bend = rate * np.polynomial.polynomial.polyval(root, others)
            size = np.abs(linear) * q + np.abs(bend) + bias_var
            return linear * q + bend + bias_var, 4 * np.finfo(float).eps * size

    def left_over(self, q: Array) -> Array:
        """q - E phi^2 / E phi'^2, where q E phi'^2 and E phi^2 are compared power by power."""
        n = len(self.moment)
        difference = np.append(np.zeros(2), self.slope[: n - 2]) - self.moment
        difference[np.abs(difference) <= NOTHING * np.abs(self.moment)] = 0.0
        root = np.sqrt(q)
        values = np.polynomial.polynomial.polyval(root, difference)
        return values / np.polynomial.polynomial.polyval(root, self.slope)


@lru_cache(maxsize=64)
def short_signals(phi: Activation) -> Short | None:
    """None if phi has no such series, as a root has none, or none with a slope."""
    if phi.homogeneous is not None or not np.isfinite(phi(np.array([-1e-9, 0.0, 1e-9]))).all():
        return None
    right, left = _taylor(phi)
    found = Short(
        _averages(right, left),
        _averages(*(np.arange(1, TERMS) * side[1:] for side in (right, left))),
    )
    checks = np.array([SHORT, SHORT / 10])
    known = phi.second_moment(checks), phi.derivative_moment(checks)
    ours = (
        np.polynomial.polynomial.polyval(np.sqrt(checks), c) for c in (found.moment, found.slope)
    )
    same = all(np.allclose(a, b, rtol=AGREE, atol=0) for a, b in zip(ours, known, strict=True))
    return found if same and found.slope[0] > 0 else None


def _taylor(phi: Activation) -> tuple[np.ndarray, np.ndarray]:
    """a_0, ... and b_0, ...: one series if it is enough for both sides, which has more digits."""
    slopes = [float(phi.derivative(side * 1e-300)) for side in (1, -1)]
    both, residue = _powers(phi, -RADIUS, RADIUS)
    if residue > SMOOTH or slopes[0] != slopes[1]:
        sides = _powers(phi, 0.0, RADIUS)[0], _powers(phi, -RADIUS, 0.0)[0]
    else:
        sides = both, both.copy()
    for side, slope in zip(sides, slopes, strict=True):
        side[:2] = float(phi(0.0)), slope
        side[np.abs(side) <= ROUNDING * (4 / RADIUS) ** np.arange(TERMS) * np.abs(side).max()] = 0.0
    return sides


def _powers(phi: Activation, low: float, high: float) -> tuple[np.ndarray, float]:
    """Coefficients of powers of x from an interpolation, and how far it is off elsewhere."""
    points, between = (
        low + (high - low) * (np.polynomial.chebyshev.chebpts1(n) + 1) / 2 for n in (DEGREE + 1, 50)
    )
    with np.errstate(all="ignore"):
        fit = np.polynomial.Chebyshev.fit(
            points, np.asarray(phi(points)), DEGREE, domain=[low, high]
        )
        residue = np.abs(fit(between) - phi(between)).max() / np.abs(fit(between)).max()
    powers = fit.convert(kind=np.polynomial.Polynomial).coef[:TERMS]
    return np.pad(powers, (0, TERMS - len(powers))), float(residue)


def _averages(right: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Of the square of two series, in powers of sqrt(q)."""
    n = min(TERMS, len(right))
    k = np.arange(n)
    moments = np.array(
        [2 ** (i / 2) * math.gamma((i + 1) / 2) / math.sqrt(math.pi) for i in range(n)]
    )
    moments[0::2] = np.cumprod(np.append(1.0, np.arange(1, n - 1, 2)))[: len(moments[0::2])]
    squares = np.convolve(right, right)[:n] + (-1.0) ** k * np.convolve(left, left)[:n]
    return squares * moments / 2
