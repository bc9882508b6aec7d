"""Functions as users give them: of numpy arrays, of one number, or of tensors; tried once, and
elementwise from then on.

A function is elementwise if a number has the same image whatever stands beside it, and wherever it
stands. Softmax, normalisations, sorting and running sums are not, and neither is noise.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

TRIAL = np.concatenate([np.linspace(-6.1, 6.1, 41), [0.0]])
SHUFFLED = np.random.default_rng(0).permutation(len(TRIAL))
ORDERS = (
    SHUFFLED,
    np.arange(5, 18),
    np.repeat(SHUFFLED, 3),
)  # other places, fewer neighbours, more of them
SAME = 1e-6  # relative: vectorised code may round differently, and in single precision


class OneFunction:
    """Equal to another that holds the same function, also one that cannot be hashed: what is known
    of it is found again."""

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
        if not flat.size:
            return np.zeros(np.shape(x))
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


def readable(f: Any, name: str) -> Vectorised:
    """f as a function of arrays, after a trial."""
    if not callable(f):
        raise ValueError(
            f"{name}: expected a name or a function of arrays, got {f!r}; names are in"
            " activations.names()"
        )
    # it takes its type from one value
    if isinstance(f, np.vectorize):
        ways = (ByNumber,)
    else:
        ways = (None, ByNumber, OfTensors)
    for through in ways:
        found = Vectorised(f, through)
        try:
            with np.errstate(all="ignore"):
                values = found.way(TRIAL)
        except (
            TypeError,
            ValueError,
            AttributeError,
            KeyError,
            RuntimeError,
        ):  # not a function of these
            continue
        _refuse_nan(_checked(values, TRIAL, f, name), f, name)
        _refuse_mixing(found, np.asarray(values, float), name)
        return found
    raise ValueError(
        f"{name}: expected a function of a numpy array; {f!r} accepts neither arrays, tensors nor"
        " numbers"
    )


def _refuse_nan(values: np.ndarray, f: Any, name: str) -> None:
    if np.isnan(values).any():
        x = TRIAL[np.isnan(values)][0]
        raise ValueError(
            f"{name}: expected a number for every real x, but {f!r} gives NaN at x = {x:g};"
            " extend it"
        )


def _refuse_mixing(f: Vectorised, values: np.ndarray, name: str) -> None:
    usual = np.median(np.abs(values))
    for order in ORDERS:
        again = f(TRIAL[order])
        with np.errstate(all="ignore"):
            apart = np.abs(again - values[order])
            room = SAME * (np.abs(values[order]) + SAME * usual)
        same = (again == values[order]) | (apart <= room)
        if not same.all():
            at = np.argmin(same)
            raise ValueError(
                f"{name}: expected a function that treats every number by itself, but {f.f!r} turns"
                f" {TRIAL[order][at]:g} into {values[order][at]:g} or {again[at]:g}, depending on"
                " the numbers beside it; make it elementwise"
            )


def _checked(values: Any, x: np.ndarray, f: Any, name: str = "activation") -> np.ndarray:
    if np.iscomplexobj(values):
        raise ValueError(
            f"{name}: expected real numbers from {f!r}, got complex ones; take the real part"
        )
    try:
        array = np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}: expected numbers from {f!r}, got {type(values).__name__}"
        ) from error
    if array.shape != x.shape:
        raise ValueError(
            f"{name}: expected one value for each number, but {f!r} turned shape {x.shape} into"
            f" {array.shape}; make it elementwise"
        )
    return array
