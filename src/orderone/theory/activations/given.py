"""Any callable as an activation: a numpy function, a lambda, a function of one number, or one of torch.

Kinks and jumps are found, and the slope is taken from polynomials on pieces, unless it is given.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from orderone.core.given import ArrayLike
from orderone.core.real_arrays import finite
from orderone.theory.activations.jumping import Jumping
from orderone.theory.activations.numeric import Numeric
from orderone.theory.gaussian.panels import REACH
from orderone.theory.gaussian.piecewise import Piecewise, resolve
from orderone.theory.gaussian.readable import Vectorised, readable


@dataclass(frozen=True)
class Slope:
    """phi' from polynomials on pieces that reach as far as they are asked for."""

    f: Vectorised
    kinks: tuple[float, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        reach = float(2.0 ** np.ceil(np.log2(max(np.abs(x).max(), 1.0))))
        pieces = _pieces(self.f, reach, self.kinks)
        if pieces is None:
            raise ValueError(
                f"activation: expected a function that can be differentiated up to {reach:g}; {self.f.f!r} varies too fast "
                "there; give its derivative as well"
            )
        return pieces.slope(x)


def from_callable(f: Any, derivative: Any = None, kinks: ArrayLike = ()) -> Numeric:
    """An activation from a function of arrays, and its derivative if it is known; `kinks` beyond those that are found."""
    value = readable(f, "activation")
    found = _pieces(value, 16.0, _finite(kinks))
    if found is None:
        raise ValueError(f"activation: expected a function that is smooth between kinks; {f!r} varies everywhere")
    slope = Slope(value, found.kinks) if derivative is None else readable(derivative, "derivative")
    name = getattr(f, "__name__", type(f).__name__)
    parts = (name, value, slope, found.kinks)
    return GivenWithJumps(*parts, jumps=found.jumps) if any(found.jumps) else Given(*parts)


@dataclass(frozen=True)
class Given(Numeric):
    """Cut where the polynomials on pieces end."""

    def cuts(self, q: float) -> np.ndarray:
        found = _pieces(self.value, float(2.0 ** np.ceil(np.log2(max(REACH * np.sqrt(q), 1.0)))), self.kinks)
        return super().cuts(q) if found is None else found.ends


@dataclass(frozen=True)
class GivenWithJumps(Given, Jumping):
    """With point masses in its slope."""


def _finite(kinks: ArrayLike) -> tuple[float, ...]:
    return tuple(map(float, finite(kinks, "kinks"))) if np.size(kinks) else ()


@lru_cache(maxsize=256)
def _pieces(f: Vectorised, reach: float, kinks: tuple[float, ...]) -> Piecewise | None:
    return resolve(f, reach, kinks)
