"""Pairs of many points from one Hermite series a point: Mehler's formula as a polynomial in the correlation.

    corr(phi(x), phi(y)) = P(c) = sum_n w_n c^n,     w_n = a_n(q1) a_n(q2),     sum_n a_n(q)^2 = 1

Odd and even functions have every other term: with s = c^2 and p(s) = sum_k w_k s^k, P = c p(s) or P = p(s); else s = c.
Horner's rule runs over the tails W_k = sum_{j > k} w_j, so that a gap is a multiple of the old one, never a difference:

    p(1) - p(s) = (1 - s) sum_k W_k s^k

The coefficients a_n are those of `orderone.theory.gaussian.series`. N of them leave out at most slope_rest c^(N-1) of the
slope, which is negligible for smooth functions, and for others unless c is close to 1.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from orderone.core.shapes import Array
from orderone.theory.gaussian.hermite import TERMS
from orderone.theory.gaussian.series import Series

NEGLIGIBLE = 1e-17  # of the second moment, for all terms at the end that are dropped
RIGHT = 1e-12  # what a slope may be off by, if the precision of the pairs is not less


def columns(found: Series, parity: int) -> tuple[np.ndarray, ...]:
    """The coefficients a_n in the order of n, a vector over points for each n, as far as they matter."""
    order = np.argsort(found.orders)
    a = found.a[:, order if not parity else order[found.orders[order] % 2 == (parity < 0)]]
    dropped = np.cumsum((a**2).max(axis=0)[::-1])[::-1]
    return tuple(np.ascontiguousarray(column) for column in a[:, dropped > NEGLIGIBLE].T)


def gap_and_slope(
    one: Sequence[Array], other: Sequence[Array], gap: Array, parity: int, rest: Array | None, xp: Any
) -> tuple[Array, Array]:
    """The gap of the new correlation, and its derivative by the old one.

    `rest` is what the series lacks of the second moment, if all lengths are equal: then it is all that differs at c = 1.
    """
    c, apart = 1 - gap, gap * (2 - gap) if parity else gap
    s = c * c if parity else c
    tail, quotient, derivative = 0.0, xp.zeros_like(s), xp.zeros_like(s)
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
        return unequal + gap * tail + c * apart * quotient, tail - apart * quotient + 2 * s * derivative
    return unequal + apart * quotient, 2 * c * derivative if parity else derivative


def unclear(slope_rest: Array, gap: Array, xp: Any) -> Array:
    """Pairs whose slope lacks more than is right. `slope_rest` is the geometric mean of the two."""
    enough = max(RIGHT, float(xp.finfo(gap.dtype).eps))
    return slope_rest * xp.abs(1 - gap) ** (TERMS - 1) > enough
