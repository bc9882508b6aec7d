"""Hermite series of phi(sqrt(q) z), and Mehler's formula.

    phi(sqrt(q) z) = sum_n a_n(q) h_n(z),   E h_m h_n = delta_mn      E h_m(z1) h_n(z2) = delta_mn
                                            c^n

    E phi(x) phi(y)   = sum_n a_n(q1) a_n(q2) c^n
    E phi'(x) phi'(y) = sum_n n a_n(q1) a_n(q2) c^(n-1) / sqrt(q1 q2)

All coefficients of E phi phi are nonnegative for q1 = q2 (Schoenberg), which is what makes the
fixed points of the correlation map few, see orderone.theory.meanfield. Differences from c = 1 are
summed as (1 - c^n), never subtracted.
"""

from functools import lru_cache

import numpy as np

from orderone.theory.gaussian.panels import half_line

TERMS = 256  # of the series


@lru_cache
def basis(order: int) -> tuple[np.ndarray, np.ndarray]:
    """h_n(z) times the weights of the half line, (nodes, terms), for even n and for odd n."""
    z, weights = half_line(order)
    columns = np.empty((len(z), TERMS))
    for n, column in enumerate(polynomials(z, TERMS)):
        columns[:, n] = column * weights
    return np.ascontiguousarray(columns[:, 0::2]), np.ascontiguousarray(columns[:, 1::2])


def polynomials(z: np.ndarray, count: int):
    """h_0(z), h_1(z), ...: orthonormal, by their recursion."""
    before = np.zeros_like(z)
    now = np.ones_like(z)
    for n in range(count):
        yield now
        before, now = now, (z * now - np.sqrt(n) * before) / np.sqrt(n + 1)


def drop(products: np.ndarray, orders: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """sum_n products_n (1 - c^n)."""
    log = _log_correlation(gap)
    even = orders % 2 == 0
    power = orders * log[..., None]
    positive = (gap <= 1)[..., None] | even
    return np.einsum(
        "...n,...n->...", products, np.where(positive, -np.expm1(power), 1 + np.exp(power))
    )


def correlated(products: np.ndarray, orders: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """sum_n products_n c^n."""
    log = _log_correlation(gap)
    even = orders % 2 == 0
    sign = np.where((gap <= 1)[..., None] | even, 1.0, -1.0)
    power = np.where(orders == 0, 0.0, orders * log[..., None])
    return np.einsum("...n,...n->...", products, sign * np.exp(power))


def _log_correlation(gap: np.ndarray) -> np.ndarray:
    """log of the absolute value of c = 1 - gap; very negative instead of infinite at c = 0."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log1p(-np.where(gap <= 1, gap, 2 - gap)), -1e6)
