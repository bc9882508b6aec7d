"""Limit of an activation for very long signals: straight lines, if phi grows like abs(x).

For a bounded phi, such as tanh, only the sign of x matters at large q, and means are powers of q.
"""

from functools import lru_cache

import numpy as np

from orderone.theory.activations import Activation, PiecewiseLinear

HUGE = 1e30  # length that represents infinity
LIMIT = 1e-6  # a ratio closer to 1 than this tends to 1


@lru_cache(maxsize=64)
def large_q_limit(phi: Activation) -> Activation:
    """Return two straight lines if phi grows like abs(x), otherwise phi itself."""
    root = np.sqrt(HUGE)
    right = float(phi(root) / root)
    left = float(phi(-root) / -root)
    limit = PiecewiseLinear(phi.name, right, left)
    if not (np.isfinite(limit.slope) and limit.slope > 0):
        return phi
    lengths = np.array([HUGE, HUGE / 1e6])
    ratios = phi.second_moment(lengths) / lengths / limit.slope
    if np.all(np.abs(ratios - 1) < LIMIT):
        return limit
    return phi


@lru_cache(maxsize=64)
def longest(phi: Activation) -> float:
    """Return a length that represents infinity and whose means are finite."""
    lengths = HUGE ** np.linspace(1, 0, 33)
    with np.errstate(over="ignore", invalid="ignore"):
        moments = phi.second_moment(lengths)
        return float(lengths[np.argmax(np.isfinite(moments) & (moments < 1e100))])
