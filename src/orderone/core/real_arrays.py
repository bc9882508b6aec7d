"""Lists of real numbers as users give them, as numpy arrays: checked once, named in the error."""

from math import inf

import numpy as np

from orderone.core.inputs import Array, Number


def reals(values: Array, name: str, *, least: Number = -inf, most: Number = inf) -> np.ndarray:
    """`values`, one number or an array of them, as float64 within [least, most]."""
    try:
        result = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name}: expected numbers, got {values!r}") from error
    if result.size == 0:
        raise ValueError(f"{name}: expected numbers, got none")
    if not np.all((result >= least) & (result <= most)):
        raise ValueError(
            f"{name}: expected numbers in [{least:.12g}, {most:.12g}], got {_few(result)}"
        )
    return result


def finite(values: Array, name: str, least: int = 1) -> np.ndarray:
    """`values` as a flat float64 array of at least `least` finite numbers."""
    result = reals(values, name).ravel()
    if result.size < least or not np.all(np.isfinite(result)):
        raise ValueError(
            f"{name}: expected at least {least} finite numbers, got {_few(result)}; leave out the"
            " others"
        )
    return result


def _few(values: Array) -> str:
    shown = ", ".join(f"{v:g}" for v in values.ravel()[:4])
    shape = f" (shape {values.shape})" if values.ndim else ""
    if values.size:
        return f"{shown}{', ...' if values.size > 4 else ''}{shape}"
    return "none"
