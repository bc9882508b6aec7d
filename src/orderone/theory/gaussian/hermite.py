"""Hermite series of phi(sqrt(q) z), and Mehler's formula.

    phi(sqrt(q) z)    = sum_n a_n(q) h_n(z)
    E h_m(z) h_n(z)   = delta_mn
    E h_m(z1) h_n(z2) = delta_mn c^n                                   c = corr(z1, z2)

    E phi(x) phi(y)   = sum_n a_n(q1) a_n(q2) c^n
    E phi'(x) phi'(y) = sum_n n a_n(q1) a_n(q2) c^(n-1) / sqrt(q1 q2)

h_n are the orthonormal Hermite polynomials. All coefficients of E phi phi are nonnegative for
q1 = q2 (Schoenberg), which is why the correlation map has few fixed points, see
orderone.theory.meanfield. Differences from c = 1 are sums of (1 - c^n), without subtraction.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from orderone.theory.gaussian.panels import half_line

TERMS = 256  # terms of the series


@lru_cache
def basis(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return h_n(z) times the weights of the half line, (nodes, terms), for even and for odd n."""
    z, weights = half_line(order)
    columns = np.empty((len(z), TERMS))
    for n, column in enumerate(polynomials(z, TERMS)):
        columns[:, n] = column * weights
    return np.ascontiguousarray(columns[:, 0::2]), np.ascontiguousarray(columns[:, 1::2])


def polynomials(z: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Yield h_0(z), h_1(z), ... by their recursion."""
    before = np.zeros_like(z)
    now = np.ones_like(z)
    for n in range(count):
        yield now
        after = (z * now - np.sqrt(n) * before) / np.sqrt(n + 1)
        before = now
        now = after


def drop(products: np.ndarray, orders: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """Return sum_n products_n (1 - c^n)."""
    even = orders % 2 == 0
    power = orders * _log_correlation(gap)[..., None]
    positive = (gap <= 1)[..., None] | even
    factors = np.where(positive, -np.expm1(power), 1 + np.exp(power))
    return np.einsum("...n,...n->...", products, factors)


def correlated(products: np.ndarray, orders: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """Return sum_n products_n c^n."""
    even = orders % 2 == 0
    sign = np.where((gap <= 1)[..., None] | even, 1.0, -1.0)
    power = np.where(orders == 0, 0.0, orders * _log_correlation(gap)[..., None])
    return np.einsum("...n,...n->...", products, sign * np.exp(power))


def _log_correlation(gap: np.ndarray) -> np.ndarray:
    """Return log abs(c) for c = 1 - gap; very negative instead of infinite at c = 0."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log1p(-np.where(gap <= 1, gap, 2 - gap)), -1e6)
