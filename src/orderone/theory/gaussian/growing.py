"""f(x) n(z) where f grows so fast that the density must be multiplied before it overflows, or
underflows.

The product is exp(log abs(f) - z^2 / 2), and a square doubles the first term. Where f itself
overflows nothing is known of the product; if it has died away before, nothing is missed. Otherwise,
or if f is infinite all of a sudden, the average is.
"""

from collections.abc import Callable
from math import log, pi
from typing import Any

import numpy as np

LARGE = 1e100  # what overflows has passed here


def weighed(
    f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, z: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """f(x) n(z) along the last axis, where z is sorted, and the largest of it at the ends; inf
    there if f is."""
    square: Any = getattr(f, "f", None) if getattr(f, "square", False) else None
    with np.errstate(all="ignore"):
        values = (f if square is None else square)(x)
        known = np.isfinite(values)
        exponent = (
            np.log(np.abs(values)) * (1 if square is None else 2) - z * z / 2 - log(2 * pi) / 2
        )
        product = np.where(
            known, np.exp(exponent) * (np.sign(values) if square is None else 1.0), 0.0
        )
    beside = known & ~(np.roll(known, 1, -1) & np.roll(known, -1, -1))
    beside[..., [0, -1]] |= known[..., [0, -1]]
    sudden = (~known).any(-1) & (
        np.where(beside & ~_outer(known), np.abs(values), np.inf).min(-1) < LARGE
    )
    edge = np.where(beside, np.abs(product), 0.0).max(-1)
    return product, np.where(sudden | ~known.any(-1), np.inf, edge)


def _outer(known: np.ndarray) -> np.ndarray:
    """The first and the last place, which have no neighbours beyond."""
    outer = np.zeros(known.shape, bool)
    outer[..., [0, -1]] = True
    return outer
