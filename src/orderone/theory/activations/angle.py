"""Angle between two unit vectors, and functions of it, without loss of digits for small gaps.

cos theta = 1 - gap
"""

import math
from types import ModuleType

from orderone.core.inputs import Array

SMALL = 0.5  # below this angle, the series with these terms is exact in double precision
TERMS = tuple((-1) ** k * (2 * k + 2) / math.factorial(2 * k + 3) for k in range(9))


def angle(gap: Array, xp: ModuleType) -> Array:
    """Return theta in [0, pi]; arccos(1 - gap) would lose half the digits near gap = 0."""
    return 2 * xp.asin(xp.sqrt(gap / 2))


def sine(gap: Array, xp: ModuleType) -> Array:
    """Return sin theta."""
    return xp.sqrt(gap * (2 - gap))


def segment(gap: Array, xp: ModuleType) -> Array:
    """Return sin theta - theta cos theta, which is close to theta^3 / 3 for small angles."""
    theta = angle(gap, xp)
    direct = sine(gap, xp) - theta * (1 - gap)
    square = theta * theta
    series = 0 * theta
    for term in reversed(TERMS):
        series = series * square + term
    return xp.where(theta < SMALL, series * square * theta, direct)
