"""Any callable as an activation: a numpy function, a lambda, a function of one number, or one of
torch.

Kinks, jumps and singular points are found, and the slope is taken from polynomials on pieces,
unless it is given.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from orderone.core.inputs import ArrayLike
from orderone.core.real_arrays import finite
from orderone.theory.activations.jumping import Jumping
from orderone.theory.activations.numeric import Numeric, Values
from orderone.theory.activations.numeric_pairs import Pairs
from orderone.theory.gaussian.average import average
from orderone.theory.gaussian.panels import REACH
from orderone.theory.gaussian.piecewise import Piecewise, resolve
from orderone.theory.gaussian.readable import Vectorised, readable
from orderone.theory.gaussian.singular import NEAREST, Blunt, Tip, ends, point_masses, tips

SHORTEST = 1e-50  # beside it a tip is still narrow
SLOPES_FROM = 2.0**-40  # zero: differences of values that are closer are rounding
UNRESOLVED = 513  # panels for what cannot be resolved
IN_THE_PLANE = 0.01 * 4.0 ** -np.arange(12)  # panels beside a singular line


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
                f"activation: expected a function that can be differentiated up to {reach:g};"
                f" {self.f.f!r} varies too fast there; give its derivative as well"
            )
        return pieces.slope(x)


def from_callable(f: Any, derivative: Any = None, kinks: ArrayLike = ()) -> Numeric:
    """An activation from a function of arrays, and its derivative if it is known; `kinks` beyond
    those that are found."""
    value = readable(f, "activation")
    found = _pieces(value, 16.0, _finite(kinks))
    if found is None:
        raise ValueError(
            f"activation: expected a function that is smooth between kinks; {f!r} varies everywhere"
        )
    if derivative is None:
        slope = Slope(value, found.kinks)
    else:
        slope = readable(derivative, "derivative")
    name = getattr(f, "__name__", type(f).__name__)
    parts = (name, value, slope, found.kinks)
    if any(found.jumps):
        return GivenWithJumps(*parts, jumps=found.jumps)
    return Given(*parts)


@dataclass(frozen=True)
class Given(Numeric):
    """Cut where the polynomials on pieces end. Averages that do not exist, at a pole for example,
    are infinite."""

    def _pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        return self._pairwise(Pairs.pair, q1, q2, gap, xp)

    def average(self, f: Values, q: np.ndarray) -> np.ndarray:
        """Of f, which is singular where phi is."""
        if np.isinf([tip.mass for tip in self._left_out(f, self._resolved(1.0))]).any():
            return np.full(np.shape(q), np.inf)
        flat = np.maximum(np.ravel(q), SHORTEST)
        high = float(flat.max())
        found = self._resolved(high)
        exact = flat <= self.exact_up_to()
        if (
            found is None and exact.any() and not exact.all()
        ):  # longer signals must not spoil the others
            result = np.empty(len(flat))
            result[exact] = self.average(f, flat[exact])
            result[~exact] = self.average(f, flat[~exact])
            return result.reshape(np.shape(q))
        if found is None or not found.singular:
            return super().average(f, q)
        left_out = self._left_out(f, found)
        points = np.concatenate([self.cuts(high), ends(left_out)])
        rest = average(Blunt(f, left_out), flat, None, points) + point_masses(
            left_out, np.sqrt(flat)
        )
        return rest.reshape(np.shape(q))

    def cuts(self, q: float) -> np.ndarray:
        found = self._resolved(q)
        if found is None:
            return np.concatenate(
                [super().cuts(q), np.linspace(-REACH, REACH, UNRESOLVED) * np.sqrt(q)]
            )
        return np.concatenate([found.ends, found.kinks])

    def slope_is_rough(self, q: float) -> bool:
        return any(np.isinf(tip.mass) for tip in self._left_out(self.slope, self._resolved(q)))

    def plane_points(self, q: float) -> np.ndarray:
        found = self._resolved(q)
        points = self.cuts(q)
        if found is None or not found.singular:
            return points
        at = np.array(found.singular)[:, None]
        far = points[(np.abs(points - at) > IN_THE_PLANE[0]).all(axis=0)]
        return np.concatenate([far, (at - IN_THE_PLANE).ravel(), (at + IN_THE_PLANE).ravel()])

    def exact_up_to(self) -> float:
        return _exact_up_to(self)

    def _left_out(self, f: Values, found: Piecewise | None) -> tuple[Tip, ...]:
        nearest = SLOPES_FROM if isinstance(getattr(f, "f", f), Slope) else NEAREST
        if found is not None:
            return _tips(f, found.singular, nearest)
        return ()

    def _resolved(self, q: float) -> Piecewise | None:
        return _pieces(
            self.value, float(2.0 ** np.ceil(np.log2(max(REACH * np.sqrt(q), 1.0)))), self.kinks
        )


@dataclass(frozen=True)
class GivenWithJumps(Given, Jumping):
    """With point masses in its slope."""


def _finite(kinks: ArrayLike) -> tuple[float, ...]:
    if np.size(kinks):
        return tuple(map(float, finite(kinks, "kinks")))
    return ()


@lru_cache(maxsize=256)
def _pieces(f: Vectorised, reach: float, kinks: tuple[float, ...]) -> Piecewise | None:
    return resolve(f, reach, kinks)


@lru_cache(maxsize=256)
def _exact_up_to(phi: Given) -> float:
    """By bisection over powers of 4."""
    resolved = 0
    lost = 30
    if phi._resolved(4.0**lost) is not None:
        return np.inf
    while lost > resolved + 1:
        middle = (resolved + lost) // 2
        resolved, lost = (
            (middle, lost) if phi._resolved(4.0**middle) is not None else (resolved, middle)
        )
    return 4.0**resolved


@lru_cache(maxsize=256)
def _tips(f: Values, points: tuple[float, ...], nearest: float) -> tuple[Tip, ...]:
    return tips(f, points, nearest)
