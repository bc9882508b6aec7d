"""Polynomials, whose Hermite series ends: phi(x) = c_0 + c_1 x + ... + c_d x^d.

phi(sqrt(q) z) = sum_k a_k(q) He_k(z) / sqrt(k!),    a_k(q) = sqrt(k!) sum_j c_{k+2j} q^{(k+2j)/2}
                                                     (k+2j)! / (2^j j! k!)
E phi(x) phi(y) = sum_k a_k(q1) a_k(q2) c^k          for correlation c (Mehler)
"""

from dataclasses import dataclass
from math import factorial
from typing import Any

import numpy as np

from orderone.core.arrays import as_numpy, like, together
from orderone.core.inputs import Array, ArrayLike
from orderone.theory.activations.base import AtLength
from orderone.theory.activations.numeric import Numeric, Square, Values

SMALLEST = 1e-300


@dataclass(frozen=True)
class Powers:
    """The polynomial with these coefficients, constant first."""

    coefficients: tuple[float, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.polynomial.polynomial.polyval(x, self.coefficients)

    @property
    def slope(self) -> "Powers":
        return Powers(tuple(n * c for n, c in enumerate(self.coefficients))[1:] or (0.0,))


@dataclass(frozen=True)
class Polynomial(Numeric):
    """Its moments are sums of those of a Gaussian, E x^2n = (2n - 1)!! q^n, and pairs finite sums:
    no quadrature."""

    def at(self, q: ArrayLike) -> AtLength:
        xp, q = together(q=q)
        return AtLength(self, q, xp)

    def _derivative_pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        first, second, gaps = np.broadcast_arrays(*(as_numpy(x) for x in (q1, q2, gap)))
        a, b = (_series(self.slope, q) for q in (first, second))
        k = np.arange(a.shape[-1])
        with np.errstate(over="ignore", invalid="ignore"):
            return like(
                np.nan_to_num((a * b * (1 - gaps[..., None]) ** k).sum(-1), nan=np.inf), gap, xp
            )

    def _output_gap(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        """Unequal lengths, and what correlation loses: nothing is subtracted."""
        first, second, gaps = np.broadcast_arrays(*(as_numpy(x) for x in (q1, q2, gap)))
        a, b = (_unit_series(self.value, q) for q in (first, second))
        lost = _one_minus_power(gaps[..., None], np.arange(a.shape[-1]))
        return like(((a - b) ** 2).sum(-1) / 2 + (a * b * lost).sum(-1), gap, xp)

    def average(self, f: Values, q: np.ndarray) -> np.ndarray:
        power = f.f if isinstance(f, Square) else f
        if not isinstance(power, Powers):
            return super().average(f, q)
        c = np.array(power.coefficients)
        c = np.convolve(c, c)[::2] if isinstance(f, Square) else c[::2]
        moments = np.cumprod(np.append(1.0, np.arange(1, 2 * len(c) - 2, 2)))
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.polynomial.polynomial.polyval(q, c * moments))


def _series(phi: Any, q: Array) -> Array:
    """a_k(q), (..., d + 1)."""
    n = np.arange(len(phi.coefficients))
    with np.errstate(over="ignore", invalid="ignore"):
        return (np.sqrt(q)[..., None] ** n * phi.coefficients) @ _hermite(len(n))


def _unit_series(phi: Any, q: Array) -> Array:
    """a_k over the root of the sum of their squares, for lengths however large or small."""
    powers = [n for n, c in enumerate(phi.coefficients) if c] or [0]
    root = np.sqrt(np.maximum(q, SMALLEST))
    n = np.arange(len(phi.coefficients)) - np.where(root > 1, powers[-1], powers[0])[..., None]
    terms = np.where(
        np.array(phi.coefficients) == 0, 0.0, root[..., None] ** np.where(phi.coefficients, n, 0)
    )
    a = (terms * phi.coefficients) @ _hermite(len(phi.coefficients))
    size = np.sqrt((a**2).sum(-1, keepdims=True))
    return a / np.where(size > 0, size, 1)


def _hermite(size: int) -> Array:
    """x^n = sum_k [n, k] He_k / sqrt(k!)."""
    result = np.zeros((size, size))
    for n in range(size):
        for j in range(n // 2 + 1):
            k = n - 2 * j
            result[n, k] = (
                factorial(n) / (2**j * factorial(j) * factorial(k)) * np.sqrt(float(factorial(k)))
            )
    return result


def _one_minus_power(gap: Array, k: Array) -> Array:
    """1 - (1 - gap)^k without cancellation."""
    near = -np.expm1(k * np.log1p(-np.minimum(gap, 0.5)))
    return np.where(gap < 0.5, near, 1 - (1 - gap) ** k)


def polynomial(*coefficients: float) -> Polynomial:
    """c_0, c_1, ..., by default x."""
    phi = Powers(tuple(coefficients) or (0.0, 1.0))
    return Polynomial("polynomial", phi, phi.slope)
