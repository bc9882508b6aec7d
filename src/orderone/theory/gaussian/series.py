"""Hermite coefficients of phi for many q, and the part of phi that they omit.

    a_n(q)     = E phi(sqrt(q) z) h_n(z)
    rest       = 1 - sum_n a_n^2 / E phi^2
    slope_rest = 1 - sum_n n a_n^2 / (q E phi'^2)

Both rests are nonnegative (Bessel), and known exactly because the two moments are integrated
separately. They bound the error of a series cut after N terms: rest c^N for a pair.
"""

from typing import NamedTuple

import numpy as np

from orderone.theory.gaussian.average import MOST_NODES
from orderone.theory.gaussian.functions import Values
from orderone.theory.gaussian.hermite import TERMS, basis, polynomials
from orderone.theory.gaussian.panels import cut_line, half_line

LEAST_ORDER = 32  # nodes per panel that resolve the highest polynomial of the series
CUT_ORDER = 24
ROUNDING = 1e-14
SLOPE_ROUNDING = 1e-13


class Series(NamedTuple):
    """Series of phi / sqrt(E phi^2), for each of a flat array of q."""

    a: np.ndarray  # (q, terms)
    orders: np.ndarray  # (terms,)
    size: np.ndarray  # (q,) sqrt(E phi^2)
    rest: np.ndarray  # (q,)
    slope_rest: np.ndarray  # (q,)
    slope_moment: np.ndarray  # (q,) E phi'^2

    def select(self, rows: np.ndarray | slice) -> "Series":
        """Return the series of some of the q."""
        return Series(
            a=self.a[rows],
            orders=self.orders,
            size=self.size[rows],
            rest=self.rest[rows],
            slope_rest=self.slope_rest[rows],
            slope_moment=self.slope_moment[rows],
        )


def series(
    phi: Values,
    parity: int,
    q: np.ndarray,
    moments: tuple[np.ndarray, np.ndarray],
    order: int | None,
    points: np.ndarray,
) -> Series:
    """Return the series at each q, with the rule of this order on the half line.

    If `order` is None, the line is cut at `points` instead. `moments` are E phi^2 and E phi'^2;
    `parity` is 1 for an even function, -1 for an odd one, 0 otherwise.
    """
    moment, slope_moment = moments
    if order:
        a, orders = _on_half_line(phi, parity, q, max(order, LEAST_ORDER))
    else:
        a, orders = _on_cut_line(phi, q, points)
    size = np.sqrt(moment)
    a = a / np.where(size > 0, size, 1.0)[:, None]
    squares = np.einsum("qn,qn->q", a, a)
    slope_squares = np.einsum("qn,qn,n->q", a, a, orders)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        slopes = np.where(slope_moment > 0, slope_squares * (moment / q) / slope_moment, 1.0)
    return Series(
        a=a,
        orders=orders,
        size=size,
        rest=_without_rounding(1 - squares, ROUNDING),
        slope_rest=_without_rounding(1 - slopes, SLOPE_ROUNDING),
        slope_moment=slope_moment,
    )


def _without_rounding(rest: np.ndarray, rounding: float) -> np.ndarray:
    """Return `rest`, with zero where it is rounding."""
    return np.where(rest > rounding, rest, 0.0)


def _on_half_line(
    phi: Values, parity: int, q: np.ndarray, order: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a_n(q) and n. An even or odd function needs only one side, and half of the terms."""
    x = np.sqrt(q)[:, None] * half_line(order)[0]
    even, odd = basis(order)
    if parity > 0:
        return phi(x) @ (2 * even), np.arange(0, TERMS, 2)
    if parity < 0:
        return phi(x) @ (2 * odd), np.arange(1, TERMS, 2)
    right = phi(x)
    left = phi(-x)
    orders = np.concatenate([np.arange(0, TERMS, 2), np.arange(1, TERMS, 2)])
    return np.hstack([(right + left) @ even, (right - left) @ odd]), orders


def _on_cut_line(phi: Values, q: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a = np.empty((len(q), TERMS))
    step = max(1, MOST_NODES // (CUT_ORDER * (len(points) + 16)))
    for i in range(0, len(q), step):
        rows = slice(i, i + step)
        root = np.sqrt(q[rows, None])
        z, weights = cut_line(np.clip(points / root, -1e9, 1e9), CUT_ORDER)
        # A pole is an end of a panel, which has no weight.
        weighted = np.where(weights > 0, phi(root * z), 0.0) * weights
        for n, polynomial in enumerate(polynomials(z, TERMS)):
            a[rows, n] = np.einsum("qz,qz->q", weighted, polynomial)
    return a, np.arange(TERMS)
