"""Averages E f(x, y) on the plane, for functions with kinks or too steep for a Hermite series.

With independent u, v ~ N(0, 1) and correlation c = 1 - gap >= 0 write

    x = sqrt(q1) (A u + B v)                    A^2 = 1 - gap/2
    y = sqrt(q2) (A u - B v)                    B^2 = gap/2

For fixed v the integrand is smooth in u between the points where x or y is at a kink. The plane is
cut along those lines, and Gauss-Legendre converges exponentially on every piece, for any gap. A
negative correlation is a positive one between x and -y.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from orderone.core.errors import InputError
from orderone.theory.gaussian.panels import LOWER_ORDERS, REACH, cut_line, economical_line

ORDER = 12
MOST_NODES = 2**21  # nodes in memory at once
MOST_IN_ALL = 2**25  # nodes of one average: about a second

Integrand: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Cuts(NamedTuple):
    """Points at which to cut the line.

    Between `points`, the function is close to a polynomial of low degree. If `economical`, it is
    smooth enough for fewer nodes on narrow panels.
    """

    kinks: np.ndarray
    points: np.ndarray
    economical: bool = False


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
    """Return E f(x, y); f is smooth except where x or y is a kink."""
    sign = 1
    if gap > 1:
        sign = -1
        gap = 2 - gap
    A = np.sqrt(1 - gap / 2)
    B = np.sqrt(gap / 2)
    root1 = np.sqrt(q1)
    root2 = np.sqrt(q2)
    points = np.concatenate([cuts.kinks, cuts.points])
    line = economical_line if cuts.economical else cut_line
    v, v_weights = line(_crossings(cuts, sign, B, root1, root2), order, reach)
    v = v[v_weights > negligible]
    v_weights = v_weights[v_weights > negligible]
    by_v = np.argsort(v)  # neighbours have panels of similar widths
    v = v[by_v]
    v_weights = v_weights[by_v]
    usual_order = LOWER_ORDERS[-1][1] if cuts.economical else order
    _check_cost(len(v) * usual_order * (2 * len(points) + 2), len(points))
    total = 0.0
    step = max(1, MOST_NODES // (order * (2 * len(points) + 16)))
    for i in range(0, len(v), step):
        shift = B * v[i : i + step, None]
        x_kinks = _divide(points, root1) - shift
        y_kinks = _divide(sign * points, root2) + shift
        u, u_weights = line(np.concatenate([x_kinks, y_kinks], axis=-1) / A, order, reach)
        x = root1 * (A * u + shift)
        y = sign * root2 * (A * u - shift)
        total += (f(x, y) * u_weights).sum(-1) @ v_weights[i : i + step]
    return float(total)


def _check_cost(nodes: int, points: int) -> None:
    """Raise if the plane has too many pieces for an answer within seconds."""
    if nodes > MOST_IN_ALL:
        raise InputError(
            f"activation: expected a function with fewer kinks and jumps, got {points} pieces:"
            " averages over pairs of signals would need the plane cut into"
            f" {nodes:.1e} points (at most {MOST_IN_ALL:.1e}); use a smooth function in its place",
            "unresolved-function",
            argument="activation",
        )


def _crossings(cuts: Cuts, sign: int, B: float, root1: float, root2: float) -> np.ndarray:
    """Return the v where a kink of x crosses one of y, and where x - y has the size of a point."""
    apart = _divide(cuts.kinks, root1)[:, None] - _divide(sign * cuts.kinks, root2)
    of_kinks = _divide(apart.ravel() / 2, B)
    of_points = _divide(_divide(cuts.points, max(root1, root2)), B)
    return np.concatenate([of_kinks, of_points])


def _divide(points: np.ndarray, by: float) -> np.ndarray:
    """Return points / by, very large instead of infinite if `by` is 0."""
    return np.clip(points / max(by, 1e-150), -1e150, 1e150)
