"""The angle theta = arccos(1 - gap) between two unit vectors, and what is made of it, with all
digits for small gaps."""

import math
from typing import Any

SMALL = 0.5  # below it the series is exact in double precision with the terms kept here
TERMS = tuple((-1) ** k * (2 * k + 2) / math.factorial(2 * k + 3) for k in range(9))


def angle(gap: Any, xp: Any) -> Any:
    """theta in [0, pi]; arccos(1 - gap) would lose half the digits near gap = 0."""
    return 2 * xp.asin(xp.sqrt(gap / 2))


def sine(gap: Any, xp: Any) -> Any:
    """sin theta."""
    return xp.sqrt(gap * (2 - gap))


def segment(gap: Any, xp: Any) -> Any:
    """sin theta - theta cos theta, of order theta^3 / 3."""
    theta = angle(gap, xp)
    direct = sine(gap, xp) - theta * (1 - gap)
    square = theta * theta
    series = 0 * theta
    for term in reversed(TERMS):
        series = series * square + term
    return xp.where(theta < SMALL, series * square * theta, direct)
