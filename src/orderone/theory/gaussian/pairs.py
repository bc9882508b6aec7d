"""E f(x) g(y) on the plane, for functions with kinks, or too steep for a Hermite series.

With independent u, v ~ N(0, 1) and correlation c = 1 - gap >= 0 write

    x = sqrt(q1) (A u + B v),    y = sqrt(q2) (A u - B v),    A^2 = 1 - gap/2,   B^2 = gap/2

For given v the integrand is smooth in u between the points where x or y meets a kink. The plane is cut along those lines,
and Gauss-Legendre converges exponentially on every piece, however small the gap is. A negative correlation is a positive
one between x and -y.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from orderone.core import checks
from orderone.core.arrays import as_numpy, together
from orderone.core.given import ArrayLike, Function
from orderone.theory.gaussian.adaptive import Expectation, kinks_of
from orderone.theory.gaussian.average import Values
from orderone.theory.gaussian.panels import FAR, REACH, cut_line, doubling
from orderone.theory.gaussian.readable import readable

ORDER = 12
ORDERS, ENOUGH = (12, 16, 24, 36), 1e-13
MOST_NODES = 2**21  # held at once

Integrand: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Cuts(NamedTuple):
    """Where to cut the line: at kinks, and at points between which the function is a polynomial of low degree."""

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
    A, B, r1, r2 = np.sqrt(1 - gap / 2), np.sqrt(gap / 2), np.sqrt(q1), np.sqrt(q2)
    points = np.concatenate(cuts)
    v, weights = cut_line(_crossings(cuts, sign, B, r1, r2), order, reach)
    v, weights = v[weights > negligible], weights[weights > negligible]
    total, held = 0.0, max(1, MOST_NODES // (order * (2 * len(points) + 16)))
    for i in range(0, len(v), held):
        shift = B * v[i : i + held, None]
        meets = np.concatenate([_divide(points, r1) - shift, _divide(sign * points, r2) + shift], axis=-1)
        u, inner = cut_line(meets / A, order, reach)
        total += (f(r1 * (A * u + shift), sign * r2 * (A * u - shift)) * inner).sum(-1) @ weights[i : i + held]
    return float(total)


def expect_pair(
    f: Function, g: Function, variance: ArrayLike = (1.0, 1.0), gap: ArrayLike = 1.0, kinks: ArrayLike = ()
) -> Expectation:
    """E f(x) g(y) with correlation 1 - gap, and an error estimate. `kinks` are those of both functions.

    `variance` is that of both, or a pair: that of x and of y. Each may be an array that broadcasts with `gap`.
    """
    xp, lengths, gaps = together(variance=variance, gap=gap)
    checks.variance(xp, lengths, "variance")
    checks.within(xp, gaps, 0, 2, "gap", "it is 1 - correlation")
    q, at = as_numpy(lengths), kinks_of(kinks)
    if q.ndim and len(q) != 2:
        raise ValueError(f"variance: expected one number, or those of x and of y; got shape {q.shape}; give a pair")
    one, other = readable(f, "f"), readable(g, "g")
    try:
        q1, q2, each = np.broadcast_arrays(*(q if q.ndim else (q, q)), as_numpy(gaps))
    except ValueError as error:
        raise ValueError(f"variance, gap: expected shapes that broadcast, got {q.shape[1:]}, {gaps.shape}") from error
    found = [_refined(one, other, a, b, c, at) for a, b, c in zip(q1.flat, q2.flat, each.flat, strict=True)]
    value, error = np.array(found).T.reshape(2, *each.shape)
    return Expectation(value[()], error[()])


def _refined(f: Values, g: Values, q1: Any, q2: Any, gap: Any, kinks: np.ndarray) -> tuple[float, float]:
    """Rules of growing order, on a plane that is large enough, until two agree; their difference is the error."""
    cuts = Cuts(np.append(kinks, 0.0), doubling(REACH * np.sqrt(max(q1, q2))))
    before = np.inf
    value = error = np.inf
    for order in ORDERS:
        with np.errstate(all="ignore"):
            value = plane_average(lambda x, y: f(x) * g(y), q1, q2, gap, cuts, order, FAR / 2, 0.0)
            error = abs(value - before)
        if error <= ENOUGH * abs(value):
            break
        before = value
    return (value, error) if np.isfinite(value) else (np.inf, np.inf)


def _crossings(cuts: Cuts, sign: int, B: float, r1: float, r2: float) -> np.ndarray:
    """Values of v where a kink of x crosses one of y, and where x - y is of the size of the points."""
    apart = _divide(cuts.kinks, r1)[:, None] - _divide(sign * cuts.kinks, r2)
    return np.concatenate([_divide(apart.ravel() / 2, B), _divide(_divide(cuts.points, max(r1, r2)), B)])


def _divide(points: np.ndarray, by: float) -> np.ndarray:
    """Far away instead of infinite."""
    return np.clip(points / max(by, 1e-150), -1e150, 1e150)
