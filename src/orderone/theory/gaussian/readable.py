"""Functions of arrays, numbers or tensors that users pass, converted to functions of arrays.

Each is tried once, and must be elementwise: the result for a number does not depend on the other
numbers in the array, nor on its place. Softmax, normalizations, sorting, running sums and noise are
errors.
"""

import sys
from typing import TypeAlias

import numpy as np

from orderone.core.errors import InputError
from orderone.core.inputs import Array, Function

TRIAL = np.concatenate([np.linspace(-6.1, 6.1, 41), [0.0]])
SHUFFLED = np.random.default_rng(0).permutation(len(TRIAL))
# Other places, fewer neighbours, more neighbours.
ORDERS = (SHUFFLED, np.arange(5, 18), np.repeat(SHUFFLED, 3))
SAME = 1e-6  # relative tolerance: vectorised code may round differently, in single precision


class OneFunction:
    """Wrapper that can be a key of a cache, even if the function cannot be hashed.

    Two of them are equal if they wrap the same function.
    """

    def __init__(self, f: Function) -> None:
        self.f = f

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, OneFunction) and self.f is other.f

    def __hash__(self) -> int:
        return hash((type(self), id(self.f)))


class ByNumber(OneFunction):
    """Function of one number, such as math.tanh."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.array([self.f(float(each)) for each in x], float)


class OfTensors(OneFunction):
    """Function of tensors; torch is imported already, or there would be none."""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.f(sys.modules["torch"].asarray(x)).detach().cpu().numpy()


Adapter: TypeAlias = type[ByNumber] | type[OfTensors] | None


class Vectorised(OneFunction):
    """User's function on arrays of any shape, without warnings about overflow.

    It gets a copy of the numbers: it may write to them, such as nn.ReLU(inplace=True).
    """

    def __init__(self, f: Function, adapter: Adapter = None) -> None:
        super().__init__(f)
        self.on_array: Function = f if adapter is None else adapter(f)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        flat = np.ravel(x)
        if not flat.size:
            return np.zeros(np.shape(x))
        with np.errstate(all="ignore"):
            return _checked(self.on_array(flat.copy()), flat, self.f).reshape(np.shape(x))


def readable(f: Function, name: str) -> Vectorised:
    """Return f as a function of arrays, after a trial."""
    if not callable(f):
        raise InputError(
            f"{name}: expected a name or a function of arrays, got {f!r};"
            " theory.activations.names() lists the names",
            "wrong-type",
            argument=name,
        )
    adapters: tuple[Adapter, ...] = (None, ByNumber, OfTensors)
    if isinstance(f, np.vectorize):  # its first value sets the type of its results
        adapters = (ByNumber,)
    for adapter in adapters:
        vectorised = Vectorised(f, adapter)
        try:
            with np.errstate(all="ignore"):
                values = vectorised.on_array(TRIAL.copy())
        except (TypeError, ValueError, AttributeError, KeyError, RuntimeError, OverflowError):
            continue  # not a function of this kind of argument
        _check_nan(_checked(values, TRIAL, f, name), f, name)
        _check_elementwise(vectorised, np.asarray(values, float), name)
        return vectorised
    raise InputError(
        f"{name}: expected a function of a numpy array, but {f!r} accepts neither arrays, tensors"
        " nor numbers",
        "wrong-type",
        argument=name,
    )


def _check_nan(values: np.ndarray, f: Function, name: str) -> None:
    if np.isnan(values).any():
        x = TRIAL[np.isnan(values)][0]
        raise InputError(
            f"{name}: expected a number for every real x, but {f!r} returns NaN at x = {x:g};"
            " extend the function, for example with np.where",
            argument=name,
        )


def _check_elementwise(f: Vectorised, values: np.ndarray, name: str) -> None:
    usual = np.median(np.abs(values))
    for order in ORDERS:
        again = f(TRIAL[order])
        with np.errstate(all="ignore"):
            difference = np.abs(again - values[order])
            room = SAME * (np.abs(values[order]) + SAME * usual)
        same = (again == values[order]) | (difference <= room)
        if not same.all():
            at = np.argmin(same)
            raise InputError(
                f"{name}: expected an elementwise function, but {f.f!r} returns"
                f" {values[order][at]:g} or {again[at]:g} for {TRIAL[order][at]:g}, depending on"
                " the other numbers in the array",
                "not-elementwise",
                argument=name,
            )


def _checked(values: Array, x: np.ndarray, f: Function, name: str = "activation") -> np.ndarray:
    if np.iscomplexobj(values):
        raise InputError(
            f"{name}: expected real numbers from {f!r}, got complex numbers; return the real part",
            argument=name,
        )
    try:
        array = np.asarray(values, float)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"{name}: expected numbers from {f!r}, got {type(values).__name__}", argument=name
        ) from error
    if array.shape != x.shape:
        raise InputError(
            f"{name}: expected an elementwise function, but {f!r} turned an array of shape"
            f" {x.shape} into one of shape {array.shape}",
            "not-elementwise",
            argument=name,
        )
    return array
