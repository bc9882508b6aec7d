"""E f(x) g(y) on the plane, for functions with kinks, or too steep for a Hermite series.

With independent u, v ~ N(0, 1) and correlation c = 1 - gap >= 0 write

    x = sqrt(q1) (A u + B v),    y = sqrt(q2) (A u - B v),    A^2 = 1 - gap/2,   B^2 = gap/2

For given v the integrand is smooth in u between the points where x or y meets a kink. The plane is
cut along those lines, and Gauss-Legendre converges exponentially on every piece, however small the
gap is. A negative correlation is a positive one between x and -y.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from orderone.theory.gaussian.panels import REACH, cut_line

ORDER = 12
MOST_NODES = 2**21  # held at once

Integrand: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Cuts(NamedTuple):
    """Where to cut the line: at kinks, and at points between which the function is a polynomial of
    low degree."""

    kinks: np.ndarray
    points: np.ndarray


def plane_average(
    f: Integrand,
    q1: float,
    q2: float,
    gap: float,
    cuts: Cuts,
    order: int = ORDER,
    reach: float = REACH,
    negligible: float = 1e-22,
) -> float:
    """E f(x, y); f is smooth except where x or y is a kink."""
    sign = 1 if gap <= 1 else -1
    gap = gap if gap <= 1 else 2 - gap
    A = np.sqrt(1 - gap / 2)
    B = np.sqrt(gap / 2)
    r1 = np.sqrt(q1)
    r2 = np.sqrt(q2)
    points = np.concatenate(cuts)
    v, weights = cut_line(_crossings(cuts, sign, B, r1, r2), order, reach)
    v = v[weights > negligible]
    weights = weights[weights > negligible]
    total = 0.0
    held = max(1, MOST_NODES // (order * (2 * len(points) + 16)))
    for i in range(0, len(v), held):
        shift = B * v[i : i + held, None]
        meets = np.concatenate(
            [_divide(points, r1) - shift, _divide(sign * points, r2) + shift], axis=-1
        )
        u, inner = cut_line(meets / A, order, reach)
        total += (f(r1 * (A * u + shift), sign * r2 * (A * u - shift)) * inner).sum(-1) @ weights[
            i : i + held
        ]
    return float(total)


def _crossings(cuts: Cuts, sign: int, B: float, r1: float, r2: float) -> np.ndarray:
    """Values of v where a kink of x crosses one of y, and where x - y is of the size of the
    points."""
    apart = _divide(cuts.kinks, r1)[:, None] - _divide(sign * cuts.kinks, r2)
    return np.concatenate(
        [_divide(apart.ravel() / 2, B), _divide(_divide(cuts.points, max(r1, r2)), B)]
    )


def _divide(points: np.ndarray, by: float) -> np.ndarray:
    """Far away instead of infinite."""
    return np.clip(points / max(by, 1e-150), -1e150, 1e150)
