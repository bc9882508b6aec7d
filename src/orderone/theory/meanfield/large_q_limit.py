"""What a very long signal sees of an activation: straight lines, if phi grows like abs(x).

Of a bounded phi, such as tanh, nothing but its sign is left at large q, and averages follow powers
of q.
"""

from functools import lru_cache

import numpy as np

from orderone.theory.activations import Activation, PiecewiseLinear

HUGE = 1e30  # a length that stands for infinity
LIMIT = 1e-6  # a ratio that is nearer to one than that tends to one


@lru_cache(maxsize=64)
def from_afar(phi: Activation) -> Activation:
    """Two straight lines, if phi grows like abs(x); otherwise phi itself."""
    right, left = (float(phi(x) / x) for x in (np.sqrt(HUGE), -np.sqrt(HUGE)))
    limit = PiecewiseLinear(phi.name, right, left)
    nearer = HUGE / 1e6
    if not (np.isfinite(limit.slope) and limit.slope > 0):
        return phi
    ratios = phi.second_moment(np.array([HUGE, nearer])) / np.array([HUGE, nearer]) / limit.slope
    if np.all(np.abs(ratios - 1) < LIMIT):
        return limit
    return phi


@lru_cache(maxsize=64)
def longest(phi: Activation) -> float:
    """A length that is as good as infinite, but whose averages are finite."""
    lengths = HUGE ** np.linspace(1, 0, 33)
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = phi.second_moment(lengths)
        return float(lengths[np.argmax(np.isfinite(sizes) & (sizes < 1e100))])
