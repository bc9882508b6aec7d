"""Polynomials, whose Hermite series ends: phi(x) = c_0 + c_1 x + ... + c_d x^d."""

from dataclasses import dataclass

import numpy as np

from orderone.theory.activations.numeric import Numeric, Square, Values


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
    """Its moments are sums of those of a Gaussian, E x^2n = (2n - 1)!! q^n: no quadrature."""

    def average(self, f: Values, q: np.ndarray) -> np.ndarray:
        power = f.f if isinstance(f, Square) else f
        if not isinstance(power, Powers):
            return super().average(f, q)
        c = np.array(power.coefficients)
        c = np.convolve(c, c)[::2] if isinstance(f, Square) else c[::2]
        moments = np.cumprod(np.append(1.0, np.arange(1, 2 * len(c) - 2, 2)))
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(np.polynomial.polynomial.polyval(q, c * moments))


def polynomial(*coefficients: float) -> Polynomial:
    """c_0, c_1, ..., by default x."""
    phi = Powers(tuple(coefficients) or (0.0, 1.0))
    return Polynomial("polynomial", phi, phi.slope)
