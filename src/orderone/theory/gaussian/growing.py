"""Product f(x) n(z) where f grows so fast that it overflows, or the density n underflows.

The product is computed as

    f n = sign(f) exp(log abs(f) - z^2 / 2) / sqrt(2 pi)

For a square, log abs(f) is twice that of its root. Where f itself overflows, the product is
unknown. If the product is negligible before that point, nothing is missed; otherwise, or if f
becomes infinite suddenly, the average is infinite.
"""

from math import log, pi

import numpy as np

from orderone.theory.gaussian.functions import Square, Values

LARGE = 1e100  # a function that overflows gradually exceeds this value first


def times_density(f: Values, x: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return f(x) n(z), and the largest abs(f(x) n(z)) at the ends of the last axis.

    z is sorted along the last axis. The second result is inf where f is infinite.
    """
    with np.errstate(all="ignore"):
        if isinstance(f, Square):
            values = f.f(x)
            log_size = np.log(np.abs(values)) * 2
            sign = 1.0
        else:
            values = f(x)
            log_size = np.log(np.abs(values))
            sign = np.sign(values)
        known = np.isfinite(values)
        exponent = log_size - z * z / 2 - log(2 * pi) / 2
        product = np.where(known, np.exp(exponent) * sign, 0.0)
    # The last finite values beside infinite ones, and those at the ends.
    beside = known & ~(np.roll(known, 1, -1) & np.roll(known, -1, -1))
    beside[..., [0, -1]] |= known[..., [0, -1]]
    inner = beside & ~_outer(known)
    smallest_beside = np.where(inner, np.abs(values), np.inf).min(-1)
    sudden = (~known).any(-1) & (smallest_beside < LARGE)
    edge = np.where(beside, np.abs(product), 0.0).max(-1)
    return product, np.where(sudden | ~known.any(-1), np.inf, edge)


def _outer(known: np.ndarray) -> np.ndarray:
    """Return a mask of the first and the last entry, which have only one neighbour."""
    outer = np.zeros(known.shape, bool)
    outer[..., [0, -1]] = True
    return outer
