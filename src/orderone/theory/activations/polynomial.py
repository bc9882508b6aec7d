"""Polynomials, whose Hermite series ends: phi(x) = c_0 + c_1 x + ... + c_d x^d."""

from dataclasses import dataclass

import numpy as np

from orderone.theory.activations.numeric import Numeric


@dataclass(frozen=True)
class Powers:
    """The polynomial with these coefficients, constant first."""

    coefficients: tuple[float, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.polynomial.polynomial.polyval(x, self.coefficients)

    @property
    def slope(self) -> "Powers":
        return Powers(tuple(n * c for n, c in enumerate(self.coefficients))[1:] or (0.0,))


def polynomial(*coefficients: float) -> Numeric:
    """c_0, c_1, ..., by default x."""
    phi = Powers(tuple(coefficients) or (0.0, 1.0))
    return Numeric("polynomial", phi, phi.slope)
