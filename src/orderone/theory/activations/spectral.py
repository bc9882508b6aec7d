"""Pairs of many points from one Hermite series a point: Mehler's formula as a polynomial in the
correlation.

    corr(phi(x), phi(y)) = P(c) = sum_n w_n c^n,     w_n = a_n(q1) a_n(q2),     sum_n a_n(q)^2 = 1

Odd and even functions have every other term: with s = c^2 and p(s) = sum_k w_k s^k, P = c p(s) or P
= p(s); else s = c. Horner's rule runs over the tails W_k = sum_{j > k} w_j, so that a gap is a
multiple of the old one, never a difference:

    p(1) - p(s) = (1 - s) sum_k W_k s^k

The coefficients a_n are those of `orderone.theory.gaussian.series`. N of them leave out at most
slope_rest c^(N-1) of the slope, which is negligible for smooth functions, and for others unless c
is close to 1.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from orderone.core.arrays import as_numpy, like
from orderone.core.inputs import Array
from orderone.theory.activations.base import Activation
from orderone.theory.gaussian.hermite import TERMS
from orderone.theory.gaussian.series import Series

NEGLIGIBLE = 1e-17  # of the second moment, for all terms at the end that are dropped
RIGHT = 1e-12  # what a slope may be off by, if the precision of the pairs is not less
SMALLEST = 1e-200  # smaller variances are taken as this one: only ratios matter there


class Spectral(Activation):
    """An activation that has a series at every length, and averages over the plane for what that
    leaves out."""

    parity: int  # 1 if phi is even, -1 if it is odd

    @abstractmethod
    def series(self, q: np.ndarray) -> Series:
        """Of phi / sqrt(E phi^2), at each q."""

    def of_length(self, q: Any, xp: Any) -> tuple[Array, ...]:
        """The length; its root and that of the slope at c = 1, by the size; what the series lacks;
        and the series."""
        lengths = np.maximum(as_numpy(q), SMALLEST)
        found = self.series(lengths)
        ratio = np.sqrt(lengths) / np.where(found.size > 0, found.size, 1.0)
        known = (
            lengths,
            ratio,
            ratio * np.sqrt(found.slope_moment),
            np.sqrt(found.slope_rest),
            np.sqrt(found.rest),
        )
        return tuple(like(vector, q, xp) for vector in (*known, *columns(found, self.parity)))

    def gap_and_slope(
        self, one: tuple[Array, ...], other: tuple[Array, ...], gap: Array, xp: Any
    ) -> tuple[Array, Array]:
        """From the series, and from the plane for those pairs where it lacks something."""
        (q1, ratio1, steep1, lack1, rest1, *a1), (q2, ratio2, steep2, lack2, rest2, *a2) = (
            one,
            other,
        )
        gap = xp.clip(gap, 0.0, 2.0)
        rest = rest1 * rest2 if one is other else None
        new, slope = polynomial(a1, a2, gap, self.parity, rest, xp)
        if not bool(xp.any(lack1 > 0)) and not bool(xp.any(lack2 > 0)):
            return new, slope
        equal = (gap == 0) & (q1 == q2)
        new = xp.where(equal, 0.0, new)
        slope = xp.where(equal, steep1 * steep2, slope)
        where = unclear(lack1 * lack2, gap, xp) & ~equal
        if bool(xp.any(where)):
            first, second, ratio = (
                xp.broadcast_to(v, gap.shape)[where] for v in (q1, q2, ratio1 * ratio2)
            )
            new[where] = self._output_gap(first, second, gap[where], xp)
            slope[where] = ratio * self._derivative_pair(first, second, gap[where], xp)
        return new, slope


def columns(found: Series, parity: int) -> tuple[np.ndarray, ...]:
    """The coefficients a_n in the order of n, a vector over points for each n, as far as they
    matter."""
    order = np.argsort(found.orders)
    a = found.a[:, order if not parity else order[found.orders[order] % 2 == (parity < 0)]]
    dropped = np.cumsum((a**2).max(axis=0)[::-1])[::-1]
    return tuple(np.ascontiguousarray(column) for column in a[:, dropped > NEGLIGIBLE].T)


def polynomial(
    one: Sequence[Array],
    other: Sequence[Array],
    gap: Array,
    parity: int,
    rest: Array | None,
    xp: Any,
) -> tuple[Array, Array]:
    """The gap of the new correlation, and its derivative by the old one.

    `rest` is what the series lacks of the second moment, if all lengths are equal: then it is all
    that differs at c = 1.
    """
    c = 1 - gap
    apart = gap * (2 - gap) if parity else gap
    s = c * c if parity else c
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
        return (
            unequal + gap * tail + c * apart * quotient,
            tail - apart * quotient + 2 * s * derivative,
        )
    return unequal + apart * quotient, 2 * c * derivative if parity else derivative


def unclear(slope_rest: Array, gap: Array, xp: Any) -> Array:
    """Pairs whose slope lacks more than is right. `slope_rest` is the geometric mean of the two."""
    enough = max(RIGHT, float(xp.finfo(gap.dtype).eps))
    return slope_rest * xp.abs(1 - gap) ** (TERMS - 1) > enough
