"""Polynomials, whose Hermite series is finite: phi(x) = c_0 + c_1 x + ... + c_d x^d.

phi(sqrt(q) z)  = sum_k a_k(q) He_k(z) / sqrt(k!)
a_k(q)          = sqrt(k!) sum_j c_{k+2j} q^{(k+2j)/2} (k+2j)! / (2^j j! k!)
E phi(x) phi(y) = sum_k a_k(q1) a_k(q2) c^k                for correlation c (Mehler)
"""

from dataclasses import dataclass
from math import factorial
from types import ModuleType

import numpy as np

from orderone.core.arrays import as_numpy, like, together
from orderone.core.inputs import Array, ArrayLike
from orderone.theory.activations.base import AtLength
from orderone.theory.activations.numeric import Numeric
from orderone.theory.gaussian.functions import Square, Values

SMALLEST = 1e-300


@dataclass(frozen=True)
class Powers:
    """Polynomial with these coefficients, constant first."""

    coefficients: tuple[float, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.polynomial.polynomial.polyval(x, self.coefficients)

    @property
    def slope(self) -> "Powers":
        """Return the derivative."""
        coefficients = tuple(n * c for n, c in enumerate(self.coefficients))
        return Powers(coefficients[1:] or (0.0,))


@dataclass(frozen=True)
class Polynomial(Numeric):
    """Activation that is a polynomial, without quadrature.

    Its moments are sums of those of a Gaussian, E x^2n = (2n - 1)!! q^n, and pairs are finite sums.
    """

    def at(self, q: ArrayLike) -> AtLength:
        xp, q = together(q=q)
        return AtLength(self, q, xp)

    def _derivative_pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        first, second, gaps = np.broadcast_arrays(as_numpy(q1), as_numpy(q2), as_numpy(gap))
        a = _series(self.slope, first)
        b = _series(self.slope, second)
        k = np.arange(a.shape[-1])
        with np.errstate(over="ignore", invalid="ignore"):
            total = (a * b * (1 - gaps[..., None]) ** k).sum(-1)
            return like(np.nan_to_num(total, nan=np.inf), gap, xp)

    def _output_gap(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        """Return the sum of the parts due to unequal lengths and to the gap."""
        first, second, gaps = np.broadcast_arrays(as_numpy(q1), as_numpy(q2), as_numpy(gap))
        a = _unit_series(self.value, first)
        b = _unit_series(self.value, second)
        lost = _one_minus_power(gaps[..., None], np.arange(a.shape[-1]))
        return like(((a - b) ** 2).sum(-1) / 2 + (a * b * lost).sum(-1), gap, xp)

    def average(self, f: Values, q: np.ndarray) -> np.ndarray:
        if isinstance(f, Powers):
            c = np.array(f.coefficients)[::2]
        elif isinstance(f, Square) and isinstance(f.f, Powers):
            root = np.array(f.f.coefficients)
            c = np.convolve(root, root)[::2]
        else:
            return super().average(f, q)
        moments = np.cumprod(np.append(1.0, np.arange(1, 2 * len(c) - 2, 2)))
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.polynomial.polynomial.polyval(q, c * moments))


def _series(phi: Values, q: Array) -> Array:
    """Return a_k(q), (..., d + 1)."""
    coefficients = _coefficients(phi)
    n = np.arange(len(coefficients))
    with np.errstate(over="ignore", invalid="ignore"):
        return (np.sqrt(q)[..., None] ** n * coefficients) @ _hermite(len(n))


def _unit_series(phi: Values, q: Array) -> Array:
    """Return a_k / sqrt(sum of a_k^2), for lengths of any size.

    Powers are counted from the highest one for long signals, from the lowest one for short ones.
    """
    coefficients = _coefficients(phi)
    present = coefficients != 0
    if present.any():
        powers = np.flatnonzero(present)
    else:
        powers = np.zeros(1, int)
    root = np.sqrt(np.maximum(q, SMALLEST))
    n = np.arange(len(coefficients)) - np.where(root > 1, powers[-1], powers[0])[..., None]
    terms = np.where(present, root[..., None] ** np.where(present, n, 0), 0.0)
    a = (terms * coefficients) @ _hermite(len(coefficients))
    size = np.sqrt((a**2).sum(-1, keepdims=True))
    return a / np.where(size > 0, size, 1)


def _coefficients(phi: Values) -> np.ndarray:
    assert isinstance(phi, Powers)
    return np.array(phi.coefficients)


def _hermite(size: int) -> Array:
    """Return the matrix [n, k] with x^n = sum_k [n, k] He_k / sqrt(k!)."""
    result = np.zeros((size, size))
    for n in range(size):
        for j in range(n // 2 + 1):
            k = n - 2 * j
            pairings = factorial(n) / (2**j * factorial(j) * factorial(k))
            result[n, k] = pairings * np.sqrt(float(factorial(k)))
    return result


def _one_minus_power(gap: Array, k: Array) -> Array:
    """Return 1 - (1 - gap)^k without cancellation."""
    near = -np.expm1(k * np.log1p(-np.minimum(gap, 0.5)))
    return np.where(gap < 0.5, near, 1 - (1 - gap) ** k)


def polynomial(*coefficients: float) -> Polynomial:
    """Return the polynomial with coefficients c_0, c_1, ...; by default x."""
    phi = Powers(tuple(coefficients) or (0.0, 1.0))
    return Polynomial("polynomial", phi, phi.slope)
