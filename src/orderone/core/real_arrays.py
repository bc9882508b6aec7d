"""Real numbers that users pass, as numpy arrays; errors name the argument."""

from math import inf

import numpy as np

from orderone.core.errors import InputError
from orderone.core.inputs import Array, Number


def reals(values: Array, name: str, *, least: Number = -inf, most: Number = inf) -> np.ndarray:
    """Return `values`, a number or an array, as float64; raise unless all are in [least, most]."""
    try:
        is_complex = np.iscomplexobj(np.asarray(values))
        if is_complex:
            result = np.empty(0)
        else:
            result = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise InputError(f"{name}: expected numbers, got {values!r}", argument=name) from error
    if is_complex:
        raise InputError(
            f"{name}: expected real numbers, got complex numbers; pass their real part",
            argument=name,
        )
    if result.size == 0:
        raise InputError(f"{name}: expected numbers, got none", argument=name)
    if not np.all((result >= least) & (result <= most)):
        raise InputError(
            f"{name}: expected numbers in [{least:.12g}, {most:.12g}], got {_few(result)}",
            argument=name,
        )
    return result


def finite(values: Array, name: str, least: int = 1) -> np.ndarray:
    """Return `values` as a flat float64 array; raise if fewer than `least` or not all finite."""
    result = reals(values, name).ravel()
    if result.size < least or not np.all(np.isfinite(result)):
        raise InputError(
            f"{name}: expected at least {least} finite numbers, got {_few(result)}; leave out the"
            " others",
            argument=name,
        )
    return result


def _few(values: np.ndarray) -> str:
    """Return the first four numbers and the shape, for an error message."""
    if not values.size:
        return "none"
    text = ", ".join(f"{value:g}" for value in values.ravel()[:4])
    if values.size > 4:
        text += ", ..."
    if values.ndim:
        text += f" (shape {values.shape})"
    return text
