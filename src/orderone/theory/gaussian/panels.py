"""Nodes and weights for E f(z), z ~ N(0, 1): Gauss-Legendre on panels.

The half line is cut into panels of one width, for functions that are smooth on both sides of zero.
For all others the line is cut at given points of x = sqrt(q) z as well, for each q anew: kinks, and
distances that double, so that what happens near zero is seen however large q is.
"""

from functools import lru_cache
from math import pi, sqrt

import numpy as np

from orderone.core.inputs import Array

WIDTH = 1.4637  # no kink that a user would type falls on a multiple by accident
COUNT = 7
REACH = WIDTH * COUNT  # the density there is 1e-23
FARTHEST = 75.0  # as far as functions are followed that grow like exponentials


@lru_cache
def legendre(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return (nodes + 1) / 2, weights / 2


@lru_cache
def half_line(order: int) -> tuple[np.ndarray, np.ndarray]:
    """z > 0, and weights that contain the density; the other half is its mirror image."""
    nodes, weights = legendre(order)
    z = (WIDTH * (np.arange(COUNT)[:, None] + nodes)).ravel()
    return z, np.tile(WIDTH * weights, COUNT) * density(z)


def density(z: Array) -> Array:
    """Of the standard normal distribution, for a number or an array."""
    return np.exp(-z * z / 2) / sqrt(2 * pi)


def cut_line(points: np.ndarray, order: int, reach: float = REACH) -> tuple[np.ndarray, np.ndarray]:
    """(..., nodes) and weights with the density, on a line cut at `points` (..., cuts), which need
    not be sorted."""
    z, weights = bare_line(points, order, reach)
    return z, weights * density(z)


def bare_line(points: np.ndarray, order: int, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """The same without the density."""
    count = int(np.ceil(reach / WIDTH - 1e-9))
    steps = np.arange(-count, count + 1) * (reach / count)
    fixed = np.broadcast_to(steps, (*points.shape[:-1], len(steps)))
    return segments(
        np.sort(np.concatenate([np.clip(points, -reach, reach), fixed], axis=-1), axis=-1), order
    )


def segments(cuts: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """(..., nodes) and weights between neighbouring cuts (..., cuts)."""
    nodes, weights = legendre(order)
    width = np.diff(cuts, axis=-1)[..., None]
    z = cuts[..., :-1, None] + width * nodes
    shape = (*cuts.shape[:-1], -1)
    return z.reshape(shape), (width * weights).reshape(shape)


def doubling(largest: float, smallest: float = 0.5) -> np.ndarray:
    """0, and +- smallest, 2 smallest, ... up to `largest`."""
    steps = max(int(np.ceil(np.log2(max(largest / smallest, 1.0)))), 0)
    positive = smallest * 2.0 ** np.arange(steps + 1)
    return np.concatenate([-positive[::-1], [0.0], positive])
