"""E f(sqrt(q) z), z ~ N(0, 1), for many q at once.

Where f is smooth on both sides of zero the rule on the half line converges exponentially, and the
smallest order that is exact is found. What does not converge has kinks elsewhere or varies faster,
and is cut there. Where the integrand has not died away it is followed farther; if it never does,
the average is infinite.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from orderone.theory.gaussian.growing import weighed
from orderone.theory.gaussian.panels import FARTHEST, REACH, bare_line, cut_line, density, half_line

ORDERS = (12, 16, 24, 32, 48, 64)
CUT_ORDER = 16
AGREE = 4e-15
NEGLIGIBLE = 1e-17
MOST_NODES = 2**20  # held at once
MOST_OCTAVES = 200  # of variances that one rule may serve

Values: TypeAlias = Callable[[np.ndarray], np.ndarray]


def average(f: Values, q: np.ndarray, order: int | None, points: np.ndarray) -> np.ndarray:
    """E f(sqrt(q) z), with the rule of this order on the half line, or cut at `points` if there is
    none."""
    flat = np.ravel(q)
    if order is None:
        held = max(1, MOST_NODES // (CUT_ORDER * (len(points) + 16)))
        parts = [_cut(f, flat[i : i + held], points, CUT_ORDER) for i in range(0, len(flat), held)]
    else:
        held = max(1, MOST_NODES // len(half_line(order)[0]))
        parts = [_smooth(f, flat[i : i + held], order) for i in range(0, len(flat), held)]
    return np.concatenate(parts).reshape(np.shape(q))


def smooth_order(f: Values, low: float, high: float, points: np.ndarray) -> int | None:
    """The smallest order on the half line that is exact for variances from `low` to `high`, or
    None.

    It is judged by the rule cut at `points`, since a rule that misses a narrow feature may well
    agree with itself.
    """
    octaves = np.log2(high) - np.log2(low)
    if octaves > MOST_OCTAVES:
        return None
    lengths = np.geomspace(low, high, 2 + int(octaves / 1.5))
    exact = _cut(f, lengths, points, CUT_ORDER)
    with np.errstate(all="ignore"):
        ends = np.abs(f(np.sqrt(lengths)[:, None] * np.array([-REACH, REACH]))).max(
            axis=-1
        ) * density(REACH)
    if not np.isfinite(exact).all() or not np.all(ends <= NEGLIGIBLE * np.abs(exact)):
        return None
    agree = (
        o for o in ORDERS if np.all(np.abs(_smooth(f, lengths, o) - exact) <= AGREE * np.abs(exact))
    )
    return next(agree, None)


def _smooth(f: Values, q: np.ndarray, order: int) -> np.ndarray:
    z, weights = half_line(order)
    x = np.sqrt(q)[:, None] * z
    if getattr(f, "even", False):
        return 2 * (f(x) @ weights)
    return (f(x) + f(-x)) @ weights


def _cut(f: Values, q: np.ndarray, points: np.ndarray, order: int) -> np.ndarray:
    """Cut for each q; once more with a longer reach for those whose integrand is still large at the
    end."""
    root = np.sqrt(q)[:, None]
    with np.errstate(all="ignore"):
        return _with_reach(f, root, points, order)


def _with_reach(f: Values, root: np.ndarray, points: np.ndarray, order: int) -> np.ndarray:
    cuts = np.where(root > 0, points / np.where(root > 0, root, 1), 0.0)
    z, weights = cut_line(cuts, order)
    terms = f(root * z) * weights
    total = terms.sum(axis=-1)
    edge = np.abs(f(root * np.array([-REACH, REACH]))).max(axis=-1) * density(REACH)
    grows = ~(edge <= NEGLIGIBLE * np.abs(terms).sum(axis=-1))
    if grows.any():
        total[grows] = _farther(f, root[grows], cuts[grows], order)
    return total


def _farther(f: Values, root: np.ndarray, cuts: np.ndarray, order: int) -> np.ndarray:
    z, weights = bare_line(cuts, order, FARTHEST)
    terms, edge = weighed(f, root * z, z)
    terms = terms * weights
    return np.where(edge <= NEGLIGIBLE * np.abs(terms).sum(axis=-1), terms.sum(axis=-1), np.inf)
