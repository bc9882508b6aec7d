"""Nodes and weights for E f(z), z ~ N(0, 1): Gauss-Legendre on panels.

For functions that are smooth on both sides of zero, the half line is cut into panels of one width.
For all others, the line is also cut at points of x = sqrt(q) z, for each q separately: at kinks,
and at distances that double, so that the region near zero is resolved for any large q.
"""

from functools import lru_cache
from math import pi, sqrt

import numpy as np

from orderone.core.inputs import Array

WIDTH = 1.4637  # kinks at round numbers are not multiples of this
COUNT = 7
REACH = WIDTH * COUNT  # the density there is 1e-23
FARTHEST = 75.0  # end of the line for functions that grow like exponentials
# Largest width, relative to WIDTH, of panels on which a lower order is as exact as 12 on WIDTH.
# Gauss-Legendre of order n errs by about r^-2n; r is 3.5 for 1e-13 there, and 3.5 k on a panel
# that is k times narrower. Each order has one node more than this requires.
LOWER_ORDERS = ((1 / 64, 4), (1 / 8, 6))


@lru_cache
def legendre(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return (nodes + 1) / 2, weights / 2


@lru_cache
def half_line(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return z > 0, and weights that contain the density; the other half is its mirror image."""
    nodes, weights = legendre(order)
    z = (WIDTH * (np.arange(COUNT)[:, None] + nodes)).ravel()
    return z, np.tile(WIDTH * weights, COUNT) * density(z)


def density(z: Array) -> Array:
    """Return the standard normal density, for a number or an array."""
    return np.exp(-z * z / 2) / sqrt(2 * pi)


def cut_line(points: np.ndarray, order: int, reach: float = REACH) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (..., nodes) and weights that contain the density, on a line cut at `points`.

    `points` are (..., cuts) and need not be sorted.
    """
    z, weights = bare_line(points, order, reach)
    return z, weights * density(z)


def economical_line(
    points: np.ndarray, order: int, reach: float = REACH
) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of `cut_line`, with fewer nodes on narrow panels.

    Panels without width have no nodes. It is exact for functions that are smooth on both sides of
    each point, however close other points are.
    """
    cuts = _cuts(points, reach)
    width = np.diff(cuts, axis=-1)
    widest = width.reshape(-1, width.shape[-1]).max(axis=0) / WIDTH
    bounds = [0.0, *(bound for bound, _ in LOWER_ORDERS), np.inf]
    orders = [*(lower for _, lower in LOWER_ORDERS), order]
    nodes = []
    weights = []
    for low, high, number in zip(bounds[:-1], bounds[1:], orders, strict=True):
        panels = (widest > low) & (widest <= high)
        t, of_t = legendre(min(number, order))
        z = cuts[..., :-1][..., panels, None] + width[..., panels, None] * t
        shape = (*cuts.shape[:-1], -1)
        nodes.append(z.reshape(shape))
        weights.append((width[..., panels, None] * of_t).reshape(shape))
    z = np.concatenate(nodes, axis=-1)
    return z, np.concatenate(weights, axis=-1) * density(z)


def bare_line(points: np.ndarray, order: int, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes of `cut_line`, and weights without the density."""
    return segments(_cuts(points, reach), order)


def _cuts(points: np.ndarray, reach: float) -> np.ndarray:
    """Return the sorted ends of the panels of a line."""
    count = int(np.ceil(reach / WIDTH - 1e-9))
    steps = np.arange(-count, count + 1) * (reach / count)
    fixed = np.broadcast_to(steps, (*points.shape[:-1], len(steps)))
    cuts = np.concatenate([np.clip(points, -reach, reach), fixed], axis=-1)
    return np.sort(cuts, axis=-1)


def segments(cuts: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes (..., nodes) and weights between neighbouring cuts (..., cuts)."""
    nodes, weights = legendre(order)
    width = np.diff(cuts, axis=-1)[..., None]
    z = cuts[..., :-1, None] + width * nodes
    shape = (*cuts.shape[:-1], -1)
    return z.reshape(shape), (width * weights).reshape(shape)


def doubling(largest: float, smallest: float = 0.5) -> np.ndarray:
    """Return 0, and +- smallest, 2 smallest, ... up to `largest`."""
    steps = max(int(np.ceil(np.log2(max(largest / smallest, 1.0)))), 0)
    positive = smallest * 2.0 ** np.arange(steps + 1)
    return np.concatenate([-positive[::-1], [0.0], positive])
