"""The Hermite coefficients a_n(q) = E phi(sqrt(q) z) h_n(z) for many q, and how much of phi they
leave out.

    rest = 1 - sum_n a_n^2 / E phi^2,        slope_rest = 1 - sum_n n a_n^2 / (q E phi'^2)

Both are nonnegative (Bessel), and known exactly because the two moments are integrated on their
own. They bound what a series cut after N terms lacks: rest c^N for a pair.
"""

from typing import NamedTuple

import numpy as np

from orderone.theory.gaussian.average import MOST_NODES, Values
from orderone.theory.gaussian.hermite import TERMS, basis, polynomials
from orderone.theory.gaussian.panels import cut_line, half_line

LEAST_ORDER = 32  # nodes per panel that resolve the highest polynomial kept
CUT_ORDER = 24
ROUNDING = 1e-14
SLOPE_ROUNDING = 1e-13


class Series(NamedTuple):
    """Of phi / sqrt(E phi^2), for each of a flat array of q."""

    a: np.ndarray  # (q, terms)
    orders: np.ndarray  # (terms,)
    size: np.ndarray  # (q,) sqrt(E phi^2)
    rest: np.ndarray  # (q,)
    slope_rest: np.ndarray  # (q,)
    slope_moment: np.ndarray  # (q,) E phi'^2

    def select(self, chosen: np.ndarray | slice) -> "Series":
        a, orders, *others = self
        return Series(a[chosen], orders, *(x[chosen] for x in others))


def series(
    phi: Values,
    parity: int,
    q: np.ndarray,
    moments: tuple[np.ndarray, np.ndarray],
    order: int | None,
    points: np.ndarray,
) -> Series:
    """The series at each q, with the rule on the half line of this order, or cut at `points` if
    there is none.

    `moments` are E phi^2 and E phi'^2; `parity` is 1 for an even function, -1 for an odd one, 0
    otherwise.
    """
    moment, slope_moment = moments
    a, orders = (
        _on_half_line(phi, parity, q, max(order, LEAST_ORDER))
        if order
        else _on_cut_line(phi, q, points)
    )
    size = np.sqrt(moment)
    a = a / np.where(size > 0, size, 1.0)[:, None]
    kept = np.einsum("qn,qn->q", a, a), np.einsum("qn,qn,n->q", a, a, orders)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        slopes = np.where(slope_moment > 0, kept[1] * (moment / q) / slope_moment, 1.0)
    return Series(
        a,
        orders,
        size,
        _beyond(1 - kept[0], ROUNDING),
        _beyond(1 - slopes, SLOPE_ROUNDING),
        slope_moment,
    )


def _beyond(rest: np.ndarray, rounding: float) -> np.ndarray:
    """Zero where nothing but rounding is left."""
    return np.where(rest > rounding, rest, 0.0)


def _on_half_line(
    phi: Values, parity: int, q: np.ndarray, order: int
) -> tuple[np.ndarray, np.ndarray]:
    """Even and odd part apart: of an odd function only one of them is left."""
    x = np.sqrt(q)[:, None] * half_line(order)[0]
    even, odd = basis(order)
    if parity:
        return phi(x) @ (2 * (even if parity > 0 else odd)), np.arange(parity < 0, TERMS, 2)
    right = phi(x)
    left = phi(-x)
    orders = np.concatenate([np.arange(0, TERMS, 2), np.arange(1, TERMS, 2)])
    return np.hstack([(right + left) @ even, (right - left) @ odd]), orders


def _on_cut_line(phi: Values, q: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    a = np.empty((len(q), TERMS))
    held = max(1, MOST_NODES // (CUT_ORDER * (len(points) + 16)))
    for i in range(0, len(q), held):
        root = np.sqrt(q[i : i + held, None])
        z, weights = cut_line(np.clip(points / root, -1e9, 1e9), CUT_ORDER)
        weighted = (
            np.where(weights > 0, phi(root * z), 0.0) * weights
        )  # a pole is no more than an end of a panel
        for n, polynomial in enumerate(polynomials(z, TERMS)):
            a[i : i + held, n] = np.einsum("qz,qz->q", weighted, polynomial)
    return a, np.arange(TERMS)
