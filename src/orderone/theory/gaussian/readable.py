"""Functions that users pass, of numpy arrays, of one number, or of tensors, as functions of arrays.

Each is tried once, and must be elementwise: a number has the same image whatever numbers are beside
it, and wherever it is in the array. Softmax, normalisations, sorting and running sums are refused,
and so is noise.
"""

import sys
from typing import TypeAlias

import numpy as np

from orderone.core.inputs import Array, Function

TRIAL = np.concatenate([np.linspace(-6.1, 6.1, 41), [0.0]])
SHUFFLED = np.random.default_rng(0).permutation(len(TRIAL))
# Other places, fewer neighbours, more neighbours.
ORDERS = (SHUFFLED, np.arange(5, 18), np.repeat(SHUFFLED, 3))
SAME = 1e-6  # relative: vectorised code may round differently, and in single precision


class OneFunction:
    """A function that can be a key of a cache, even if it cannot be hashed.

    Two of them are equal if they hold the same function.
    """

    def __init__(self, f: Function) -> None:
        self.f = f

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, OneFunction) and self.f is other.f

    def __hash__(self) -> int:
        return hash((type(self), id(self.f)))


class ByNumber(OneFunction):
    """A function of one number, such as math.tanh."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.array([self.f(float(each)) for each in x], float)


class OfTensors(OneFunction):
    """A function of tensors. Who has one has imported torch."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.f(sys.modules["torch"].asarray(x)).detach().cpu().numpy()


Adapter: TypeAlias = type[ByNumber] | type[OfTensors] | None


class Vectorised(OneFunction):
    """A user's function on arrays of any shape, silent about overflow."""

    def __init__(self, f: Function, adapter: Adapter = None) -> None:
        super().__init__(f)
        self.on_array: Function = f if adapter is None else adapter(f)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        flat = np.ravel(x)
        if not flat.size:
            return np.zeros(np.shape(x))
        with np.errstate(all="ignore"):
            return _checked(self.on_array(flat), flat, self.f).reshape(np.shape(x))


def readable(f: Function, name: str) -> Vectorised:
    """Return f as a function of arrays, after a trial."""
    if not callable(f):
        raise ValueError(
            f"{name}: expected a name or a function of arrays, got {f!r}; names are in"
            " activations.names()"
        )
    adapters: tuple[Adapter, ...] = (None, ByNumber, OfTensors)
    if isinstance(f, np.vectorize):  # takes the type of its results from the first value
        adapters = (ByNumber,)
    for adapter in adapters:
        vectorised = Vectorised(f, adapter)
        try:
            with np.errstate(all="ignore"):
                values = vectorised.on_array(TRIAL)
        except (TypeError, ValueError, AttributeError, KeyError, RuntimeError):
            continue  # not a function of this kind of argument
        _refuse_nan(_checked(values, TRIAL, f, name), f, name)
        _refuse_mixing(vectorised, np.asarray(values, float), name)
        return vectorised
    raise ValueError(
        f"{name}: expected a function of a numpy array; {f!r} accepts neither arrays, tensors nor"
        " numbers"
    )


def _refuse_nan(values: np.ndarray, f: Function, name: str) -> None:
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
            difference = np.abs(again - values[order])
            room = SAME * (np.abs(values[order]) + SAME * usual)
        same = (again == values[order]) | (difference <= room)
        if not same.all():
            at = np.argmin(same)
            raise ValueError(
                f"{name}: expected a function that treats every number by itself, but {f.f!r} turns"
                f" {TRIAL[order][at]:g} into {values[order][at]:g} or {again[at]:g}, depending on"
                " the numbers beside it; make it elementwise"
            )


def _checked(values: Array, x: np.ndarray, f: Function, name: str = "activation") -> np.ndarray:
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
