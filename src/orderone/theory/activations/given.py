"""Any callable as an activation: a numpy function, a lambda, a function of one number, or one of torch.

Kinks and jumps are found, and the slope is taken from polynomials on pieces, unless it is given.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from orderone.core.given import ArrayLike
from orderone.core.reals import finite
from orderone.theory.activations.jumping import Jumping
from orderone.theory.activations.numeric import Numeric
from orderone.theory.gaussian.panels import REACH
from orderone.theory.gaussian.piecewise import Piecewise, resolve

TRIAL = np.concatenate([np.linspace(-6.1, 6.1, 41), [0.0]])


class OneFunction:
    """Equal to another that holds the same function, also one that cannot be hashed: what is known of it is found again."""

    def __init__(self, f: Callable[[Any], Any]):
        self.f = f

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, OneFunction) and self.f is other.f

    def __hash__(self) -> int:
        return hash((type(self), id(self.f)))


class Vectorised(OneFunction):
    """A user's function on arrays of any shape, silent about overflow."""

    def __init__(self, f: Callable[[Any], Any], through: Any = None):
        super().__init__(f)
        self.way: Callable[[Any], Any] = f if through is None else through(f)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        flat = np.ravel(x)
        with np.errstate(all="ignore"):
            return _checked(self.way(flat), flat, self.f).reshape(np.shape(x))


class ByNumber(OneFunction):
    """A function of one number, such as math.tanh."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.array([self.f(float(each)) for each in x], float)


class OfTensors(OneFunction):
    """A function of tensors: torch is there, or the user could not have one."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.f(sys.modules["torch"].asarray(x)).detach().cpu().numpy()


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
    value = _readable(f, "activation")
    found = _pieces(value, 16.0, _finite(kinks))
    if found is None:
        raise ValueError(f"activation: expected a function that is smooth between kinks; {f!r} varies everywhere")
    slope = Slope(value, found.kinks) if derivative is None else _readable(derivative, "derivative")
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


def _readable(f: Any, name: str) -> Vectorised:
    """f as a function of arrays, after a trial."""
    if not callable(f):
        raise ValueError(
            f"{name}: expected a name or a function of arrays, got {f!r}; names are in activations.names()"
        )
    for through in (None, ByNumber, OfTensors):
        readable = Vectorised(f, through)
        try:
            with np.errstate(all="ignore"):
                values = readable.way(TRIAL)
        except (TypeError, ValueError, AttributeError, KeyError, RuntimeError):  # not a function of these
            continue
        _refuse_nan(_checked(values, TRIAL, f, name), f, name)
        return readable
    raise ValueError(f"{name}: expected a function of a numpy array; {f!r} accepts neither arrays, tensors nor numbers")


def _finite(kinks: ArrayLike) -> tuple[float, ...]:
    return tuple(map(float, finite(kinks, "kinks"))) if np.size(kinks) else ()


def _refuse_nan(values: np.ndarray, f: Any, name: str) -> None:
    if np.isnan(values).any():
        x = TRIAL[np.isnan(values)][0]
        raise ValueError(f"{name}: expected a number for every real x, but {f!r} gives NaN at x = {x:g}; extend it")


def _checked(values: Any, x: np.ndarray, f: Any, name: str = "activation") -> np.ndarray:
    if np.iscomplexobj(values):
        raise ValueError(f"{name}: expected real numbers from {f!r}, got complex ones; take the real part")
    try:
        array = np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected numbers from {f!r}, got {type(values).__name__}") from error
    if array.shape != x.shape:
        raise ValueError(
            f"{name}: expected one value for each number, but {f!r} turned shape {x.shape} into {array.shape}; "
            "make it elementwise"
        )
    return array


@lru_cache(maxsize=256)
def _pieces(f: Vectorised, reach: float, kinks: tuple[float, ...]) -> Piecewise | None:
    return resolve(f, reach, kinks)
