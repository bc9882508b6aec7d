"""E f(sqrt(q) z) with z ~ N(0, 1), for many q at once.

If f is smooth on both sides of zero, the rule on the half line converges exponentially;
`smooth_order` returns the smallest order that is exact. Other functions have kinks elsewhere or
vary faster; for them the line is cut at `points`. If the integrand is not negligible at the end of
the line, a longer line is used. If it is not negligible there either, the average is infinite.
"""

import numpy as np

from orderone.core.exact import count
from orderone.theory.gaussian.functions import Square, Values
from orderone.theory.gaussian.growing import times_density
from orderone.theory.gaussian.panels import FARTHEST, REACH, bare_line, cut_line, density, half_line

ORDERS = (12, 16, 24, 32, 48, 64)
LARGEST_ORDER = 1024
CUT_ORDER = 16
AGREE = 4e-15
NEGLIGIBLE = 1e-17
MOST_NODES = 2**20  # nodes in memory at once
SIMILAR = 64.0  # largest ratio of variances that are averaged together
MOST_OCTAVES = 200  # largest range of variances for one rule


def average(f: Values, q: np.ndarray, order: int | None, points: np.ndarray) -> np.ndarray:
    """Return E f(sqrt(q) z), with the rule of this order on the half line.

    If `order` is None, the line is cut at `points` instead.
    """
    flat = np.ravel(q)
    parts = []
    if order is None:
        return _cut_by_length(f, flat, points).reshape(np.shape(q))
    order = count(order, "order", most=LARGEST_ORDER)
    step = max(1, MOST_NODES // len(half_line(order)[0]))
    for i in range(0, len(flat), step):
        parts.append(_smooth(f, flat[i : i + step], order))
    return np.concatenate(parts).reshape(np.shape(q))


def smooth_order(f: Values, low: float, high: float, points: np.ndarray) -> int | None:
    """Return the smallest order on the half line that is exact for variances from `low` to `high`.

    Return None if there is none. The reference is the rule cut at `points`: two orders on the half
    line may agree although both miss a narrow feature.
    """
    octaves = np.log2(high) - np.log2(low)
    if octaves > MOST_OCTAVES:
        return None
    lengths = np.geomspace(low, high, 2 + int(octaves / 1.5))
    exact = _cut_by_length(f, lengths, points)
    with np.errstate(all="ignore"):
        edge = _edge(f, np.sqrt(lengths)[:, None])
    if not np.isfinite(exact).all() or not np.all(edge <= NEGLIGIBLE * np.abs(exact)):
        return None
    for order in ORDERS:
        difference = np.abs(_smooth(f, lengths, order) - exact)
        if np.all(difference <= AGREE * np.abs(exact)):
            return order
    return None


def _smooth(f: Values, q: np.ndarray, order: int) -> np.ndarray:
    z, weights = half_line(order)
    x = np.sqrt(q)[:, None] * z
    if isinstance(f, Square) and f.even:
        return 2 * (f(x) @ weights)
    return (f(x) + f(-x)) @ weights


def _cut_by_length(f: Values, q: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Average signals of similar lengths together, on a line cut where they reach."""
    result = np.empty(len(q))
    order = np.argsort(q, kind="stable")
    start = 0
    while start < len(q):
        shortest = q[order[start]]
        end = start + int(np.searchsorted(q[order[start:]] / SIMILAR, shortest, side="right"))
        farthest = FARTHEST * np.sqrt(q[order[end - 1]])
        within = points[np.abs(points) <= farthest]
        step = max(1, MOST_NODES // (CUT_ORDER * (len(within) + 16)))
        for i in range(start, end, step):
            rows = order[i : min(i + step, end)]
            result[rows] = _cut(f, q[rows], within, CUT_ORDER)
        start = end
    return result


def _cut(f: Values, q: np.ndarray, points: np.ndarray, order: int) -> np.ndarray:
    """Average on a line cut at `points`, or on a longer one if f is still large at its end."""
    root = np.sqrt(q)[:, None]
    with np.errstate(all="ignore"):
        cuts = np.where(root > 0, points / np.where(root > 0, root, 1), 0.0)
        z, weights = cut_line(cuts, order)
        terms = f(root * z) * weights
        total = terms.sum(axis=-1)
        grows = ~(_edge(f, root) <= NEGLIGIBLE * np.abs(terms).sum(axis=-1))
        if grows.any():
            total[grows] = _on_longer_line(f, root[grows], cuts[grows], order)
    return total


def _edge(f: Values, root: np.ndarray) -> np.ndarray:
    """Return the larger value of abs(f) times the density at the two ends of the line."""
    return np.abs(f(root * np.array([-REACH, REACH]))).max(axis=-1) * density(REACH)


def _on_longer_line(f: Values, root: np.ndarray, cuts: np.ndarray, order: int) -> np.ndarray:
    z, weights = bare_line(cuts, order, FARTHEST)
    products, edge = times_density(f, root * z, z)
    terms = products * weights
    return np.where(edge <= NEGLIGIBLE * np.abs(terms).sum(axis=-1), terms.sum(axis=-1), np.inf)
