"""Activations from functions of numpy arrays, of one number, or of torch tensors.

Kinks, jumps and singular points are located automatically. The slope is that of piecewise
polynomials, unless the user passes a derivative.
"""

from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import numpy as np

from orderone.core.errors import InputError
from orderone.core.inputs import Array, ArrayLike, Function
from orderone.core.real_arrays import finite
from orderone.theory.activations.jumping import Jumping
from orderone.theory.activations.numeric import Numeric
from orderone.theory.activations.numeric_pairs import Pairs
from orderone.theory.gaussian.average import average
from orderone.theory.gaussian.functions import Square, Values
from orderone.theory.gaussian.narrow import FARTHEST, narrow_features
from orderone.theory.gaussian.panels import REACH, density
from orderone.theory.gaussian.piecewise import Piecewise, resolve
from orderone.theory.gaussian.readable import Vectorised, readable
from orderone.theory.gaussian.singular import NEAREST, Blunt, Tip, ends, point_masses, tips

SHORTEST = 1e-50  # replaces smaller variances: a tip must be narrow in comparison
SLOPES_FROM = 2.0**-40  # half width of the tip of a slope at zero; closer, it is rounding
UNRESOLVED = 513  # panels for functions that cannot be resolved
UNCERTAIN = 1e-5  # largest part of an average that may come from where f is not resolved
IN_THE_PLANE = 0.01 * 4.0 ** -np.arange(12)  # panels beside a singular line


@dataclass(frozen=True)
class Slope:
    """Slope of piecewise polynomials that reach as far as the argument."""

    f: Vectorised
    kinks: tuple[float, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        reach = float(2.0 ** np.ceil(np.log2(max(np.abs(x).max(), 1.0))))
        pieces = _pieces(self.f, reach, self.kinks)
        if pieces is None:
            raise InputError(
                f"activation: expected a function with a numerical derivative up to {reach:g}, but"
                f" {self.f.f!r} varies too fast there; pass its derivative as well",
                "unresolved-function",
                argument="activation",
            )
        return pieces.slope(x)


def from_callable(
    f: Function, derivative: Function | None = None, kinks: ArrayLike = ()
) -> Numeric:
    """Return an activation from a function of arrays, and its derivative if it is known.

    Bumps are found if they are wider than 2^-15 max(1, abs(x)), up to abs(x) = 16, and wider than
    abs(x) / 512 beyond; 2^-11 instead of 2^-15 for functions of single numbers. `kinks` are points
    inside narrower ones, or where f or its slope jumps, in addition to those that are detected.
    """
    value = readable(f, "activation")
    if np.size(kinks):
        known_kinks = tuple(map(float, finite(kinks, "kinks")))
    else:
        known_kinks = ()
    narrow = _narrow(value, known_kinks)
    if narrow is None:
        pieces = None
    else:
        pieces = _pieces(value, FARTHEST, known_kinks + narrow)
    if pieces is None:
        raise InputError(
            f"activation: expected a function that is smooth between kinks, but {f!r} varies too"
            " fast, or has too many narrow bumps",
            "unresolved-function",
            argument="activation",
        )
    if derivative is None:
        slope = Slope(value, pieces.kinks)
    else:
        slope = readable(derivative, "derivative")
    name = getattr(f, "__name__", type(f).__name__)
    if any(pieces.jumps):
        return FromCallableWithJumps(name, value, slope, pieces.kinks, jumps=pieces.jumps)
    return FromCallable(name, value, slope, pieces.kinks)


@dataclass(frozen=True)
class FromCallable(Numeric):
    """Activation from a user's function.

    The line is cut where the piecewise polynomials end. Averages that do not exist, at a pole for
    example, are infinite.
    """

    def _pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        return self._pairwise(Pairs.pair, q1, q2, gap, xp)

    def average(self, f: Values, q: np.ndarray) -> np.ndarray:
        """Return E f(sqrt(q) z) for f that is singular where phi is."""
        if self._diverges(f, 1.0):
            return np.full(np.shape(q), np.inf)
        flat = np.maximum(np.ravel(q), SHORTEST)
        high = float(flat.max())
        pieces = self._resolved(high)
        exact = flat <= self.exact_up_to()
        if pieces is None and exact.any() and not exact.all():
            # Average long signals separately: they would reduce the precision of the others.
            result = np.empty(len(flat))
            result[~exact] = self.average(f, flat[~exact])  # first: it may be refused
            result[exact] = self.average(f, flat[exact])
            return result.reshape(np.shape(q))
        if pieces is None:
            return super().average(f, q)
        singular_tips = self._singular_tips(f, pieces)
        if singular_tips:
            points = np.concatenate([self.cuts(high), ends(singular_tips)])
            smooth = average(Blunt(f, singular_tips), flat, None, points)
            total = smooth + point_masses(singular_tips, np.sqrt(flat))
        else:
            total = super().average(f, flat)
        for at, error in _unresolved(f, pieces, singular_tips).items():
            self._check_part(at, error, flat, total)
        return total.reshape(np.shape(q))

    def _check_part(self, at: float, error: float, q: np.ndarray, total: np.ndarray) -> None:
        """Raise if a part of the function that is not resolved matters for the average."""
        root = np.sqrt(q)
        if np.all(error * density(at / root) / root <= UNCERTAIN * np.abs(total)):
            return
        raise InputError(
            f"activation: expected a function that can be resolved in double precision, but"
            f" {self.name} varies too fast at x = {at:.9g}; pass its derivative as well, or use a"
            " function that is less steep",
            "unresolved-function",
            argument="activation",
        )

    def cuts(self, q: float) -> np.ndarray:
        pieces = self._resolved(q)
        if pieces is None:
            panels = np.linspace(-REACH, REACH, UNRESOLVED) * np.sqrt(q)
            return np.concatenate([super().cuts(q), panels])
        return np.concatenate([pieces.ends, pieces.kinks])

    def slope_is_rough(self, q: float) -> bool:
        return self._diverges(self.slope, q)

    def plane_points(self, q: float) -> np.ndarray:
        pieces = self._resolved(q)
        points = self.cuts(q)
        if pieces is None or not pieces.singular:
            return points
        at = np.array(pieces.singular)[:, None]
        far = points[(np.abs(points - at) > IN_THE_PLANE[0]).all(axis=0)]
        return np.concatenate([far, (at - IN_THE_PLANE).ravel(), (at + IN_THE_PLANE).ravel()])

    def exact_up_to(self) -> float:
        return _exact_up_to(self)

    def _diverges(self, f: Values, q: float) -> bool:
        """Return whether f has no integral at a singular point, for variances up to q."""
        return any(np.isinf(tip.mass) for tip in self._singular_tips(f, self._resolved(q)))

    def _singular_tips(self, f: Values, pieces: Piecewise | None) -> tuple[Tip, ...]:
        if pieces is None:
            return ()
        nearest = SLOPES_FROM if _is_slope(f) else NEAREST
        return _tips(f, pieces.singular, nearest)

    def _resolved(self, q: float) -> Piecewise | None:
        """Return phi as polynomials on pieces, as far as signals of variance q reach."""
        reach = float(2.0 ** np.ceil(np.log2(max(REACH * np.sqrt(q), 1.0))))
        return _pieces(self.value, reach, self.kinks)


@dataclass(frozen=True)
class FromCallableWithJumps(FromCallable, Jumping):
    """Activation from a user's function, with point masses in its slope."""


def _is_slope(f: Values) -> bool:
    """Return whether f is a numerical slope, or its square."""
    root = f.f if isinstance(f, Square) else f
    return isinstance(root, Slope)


def _unresolved(f: Values, pieces: Piecewise, singular_tips: tuple[Tip, ...]) -> dict[float, float]:
    """Return points at which f is not resolved, and the error of the integral of f there."""
    errors: dict[float, float] = {}
    if isinstance(f, Square) and _is_slope(f):
        errors.update(pieces.steep_kinks())
    for tip in singular_tips:
        if tip.is_power:
            errors.pop(tip.at, None)  # its error is small: the power is extrapolated
        else:
            if _is_slope(f):
                slope_error = abs(tip.mass)
            else:
                slope_error = 0.0
            errors[tip.at] = errors.get(tip.at, 0.0) + tip.error + slope_error
    return errors


@lru_cache(maxsize=256)
def _narrow(f: Vectorised, kinks: tuple[float, ...]) -> tuple[float, ...] | None:
    return narrow_features(f, kinks)


@lru_cache(maxsize=256)
def _pieces(f: Vectorised, reach: float, kinks: tuple[float, ...]) -> Piecewise | None:
    return resolve(f, reach, kinks)


@lru_cache(maxsize=256)
def _exact_up_to(phi: FromCallable) -> float:
    """Return the largest power of 4 that is resolved, by bisection."""
    resolved = 0
    unresolved = 30
    if phi._resolved(4.0**unresolved) is not None:
        return np.inf
    while unresolved > resolved + 1:
        middle = (resolved + unresolved) // 2
        if phi._resolved(4.0**middle) is not None:
            resolved = middle
        else:
            unresolved = middle
    return 4.0**resolved


@lru_cache(maxsize=256)
def _tips(f: Values, points: tuple[float, ...], nearest: float) -> tuple[Tip, ...]:
    return tips(f, points, nearest)
