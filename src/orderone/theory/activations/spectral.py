"""Pairs of many points from one Hermite series for each point.

Mehler's formula as a polynomial in the correlation c:

    corr(phi(x), phi(y)) = P(c) = sum_n w_n c^n
    w_n                  = a_n(q1) a_n(q2),        sum_n a_n(q)^2 = 1

Odd and even functions have every other term: with s = c^2 and p(s) = sum_k w_k s^k, P = c p(s) or
P = p(s); otherwise s = c. Horner's rule runs over the tails W_k = sum_{j > k} w_j, so that the new
gap is a multiple of the old one, never a difference:

    p(1) - p(s) = (1 - s) sum_k W_k s^k

The coefficients a_n are those of `orderone.theory.gaussian.series`. N of them omit at most
slope_rest c^(N-1) of the slope, which is negligible for smooth functions, and for others unless c
is close to 1.
"""

from abc import abstractmethod
from collections.abc import Sequence
from types import ModuleType

import numpy as np

from orderone.core.arrays import as_numpy, like
from orderone.core.inputs import Array
from orderone.theory.activations.base import Activation
from orderone.theory.gaussian.functions import Values
from orderone.theory.gaussian.hermite import TERMS
from orderone.theory.gaussian.pairs import Cuts
from orderone.theory.gaussian.series import Series

NEGLIGIBLE = 1e-17  # sum of the dropped last terms, relative to the second moment
RIGHT = 1e-12  # accepted error of a slope, unless pairs have a lower precision
SMALLEST = 1e-200  # replaces smaller variances, where only ratios matter


class Spectral(Activation):
    """Activation with a series at every length; other pairs are integrated over the plane."""

    value: Values  # phi, on numpy arrays
    slope: Values  # phi'
    kinks: tuple[float, ...]
    parity: int  # 1 if phi is even, -1 if it is odd, 0 otherwise

    @abstractmethod
    def series(self, q: np.ndarray) -> Series:
        """Return the series of phi / sqrt(E phi^2) at each q."""

    @abstractmethod
    def plane_cuts(self, q: float) -> Cuts:
        """Return the cuts of the plane for pairs of variances up to q."""

    @abstractmethod
    def point_masses(self, q1: float, q2: float, gap: float) -> float:
        """Return the contribution of jumps of phi to E phi'(x) phi'(y)."""

    @abstractmethod
    def slope_is_rough(self, q: float) -> bool:
        """Return whether phi' has no average, as for log abs(x)."""

    def of_length(self, q: Array, xp: ModuleType) -> tuple[Array, ...]:
        """Return vectors over the points: q, ratios, roots of the rests, and the series.

        ratio = sqrt(q / E phi^2), and steepness = ratio sqrt(E phi'^2) is the root of the slope at
        c = 1.
        """
        lengths = np.maximum(as_numpy(q), SMALLEST)
        expansion = self.series(lengths)
        ratio = np.sqrt(lengths) / np.where(expansion.size > 0, expansion.size, 1.0)
        steepness = ratio * np.sqrt(expansion.slope_moment)
        root_slope_rest = np.sqrt(expansion.slope_rest)
        root_rest = np.sqrt(expansion.rest)
        coefficients = columns(expansion, self.parity)
        vectors = (lengths, ratio, steepness, root_slope_rest, root_rest, *coefficients)
        return tuple(like(vector, q, xp) for vector in vectors)

    def gap_and_slope(
        self, one: tuple[Array, ...], other: tuple[Array, ...], gap: Array, xp: ModuleType
    ) -> tuple[Array, Array]:
        """Return gap and slope from the series, or from the plane where it has too few terms."""
        q1, ratio1, steepness1, root_slope_rest1, root_rest1, *a1 = one
        q2, ratio2, steepness2, root_slope_rest2, root_rest2, *a2 = other
        gap = xp.clip(gap, 0.0, 2.0)
        if one is other:
            rest = root_rest1 * root_rest2
        else:
            rest = None
        new, slope = polynomial(a1, a2, gap, self.parity, rest, xp)
        if not bool(xp.any(root_slope_rest1 > 0)) and not bool(xp.any(root_slope_rest2 > 0)):
            return new, slope
        equal = (gap == 0) & (q1 == q2)
        new = xp.where(equal, 0.0, new)
        slope = xp.where(equal, steepness1 * steepness2, slope)
        where = unclear(root_slope_rest1 * root_slope_rest2, gap, xp) & ~equal
        if bool(xp.any(where)):
            first = xp.broadcast_to(q1, gap.shape)[where]
            second = xp.broadcast_to(q2, gap.shape)[where]
            ratio = xp.broadcast_to(ratio1 * ratio2, gap.shape)[where]
            new[where] = self._output_gap(first, second, gap[where], xp)
            slope[where] = ratio * self._derivative_pair(first, second, gap[where], xp)
        return new, slope


def columns(expansion: Series, parity: int) -> tuple[np.ndarray, ...]:
    """Return the coefficients a_n in the order of n, as far as they matter.

    Each is a vector over points. Terms that are 0 by parity are dropped.
    """
    order = np.argsort(expansion.orders)
    if parity:
        order = order[expansion.orders[order] % 2 == (parity < 0)]
    a = expansion.a[:, order]
    dropped = np.cumsum((a**2).max(axis=0)[::-1])[::-1]
    return tuple(np.ascontiguousarray(column) for column in a[:, dropped > NEGLIGIBLE].T)


def polynomial(
    one: Sequence[Array],
    other: Sequence[Array],
    gap: Array,
    parity: int,
    rest: Array | None,
    xp: ModuleType,
) -> tuple[Array, Array]:
    """Return the gap of the new correlation, and its derivative in the old one.

    `rest` is the part of the second moment that the series omits, if all lengths are equal: then it
    is the whole difference at c = 1.
    """
    c = 1 - gap
    if parity:
        s = c * c
        one_minus_s = gap * (2 - gap)
    else:
        s = c
        one_minus_s = gap
    tail = 0.0
    quotient = xp.zeros_like(s)
    derivative = xp.zeros_like(s)
    for k in range(len(one) - 1, -1, -1):
        w = one[k] * other[k]
        quotient *= s
        quotient += tail
        if k:
            derivative *= s
            derivative += k * w
        tail = tail + w
    unequal = xp.abs(1 - tail) if rest is None else rest
    if parity < 0:
        new = unequal + gap * tail + c * one_minus_s * quotient
        return new, tail - one_minus_s * quotient + 2 * s * derivative
    new = unequal + one_minus_s * quotient
    if parity > 0:
        return new, 2 * c * derivative
    return new, derivative


def unclear(slope_rest: Array, gap: Array, xp: ModuleType) -> Array:
    """Return a mask of pairs with an inaccurate slope; `slope_rest` is a geometric mean."""
    accepted = max(RIGHT, float(xp.finfo(gap.dtype).eps))
    return slope_rest * xp.abs(1 - gap) ** (TERMS - 1) > accepted
