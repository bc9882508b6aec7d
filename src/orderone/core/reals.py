"""Real numbers and lists of them as users type them: checked once, named in the error."""

from math import inf, nan

import numpy as np

from orderone.core.given import Array, Number

MOST_STEPS = 10**7  # hours of work


def real(value: Number, name: str, least: Number = -inf, most: Number = inf, above: Number = -inf) -> float:
    """`value` as a finite float with least <= value <= most and value > above, or a ValueError that names it."""
    try:
        number = nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = nan
    if not (np.isfinite(number) and least <= number <= most and number > above):
        raise ValueError(f"{name}: expected a finite number{_range(least, most, above)}; got {value!r}")
    return number


def _range(least: Number, most: Number, above: Number) -> str:
    words = [(above, "above"), (least, "of at least"), (most, "of at most")]
    return " and".join(f" {word} {bound:g}" for bound, word in words if np.isfinite(bound))


def reals(values: Array, name: str, *, least: Number = -inf, most: Number = inf) -> np.ndarray:
    """`values`, one number or an array of them, as float64 within [least, most]."""
    try:
        result = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name}: expected numbers, got {values!r}") from error
    if result.size == 0:
        raise ValueError(f"{name}: expected numbers, got none")
    if not np.all((result >= least) & (result <= most)):
        raise ValueError(f"{name}: expected numbers in [{least:.12g}, {most:.12g}], got {_few(result)}")
    return result


def finite(values: Array, name: str, least: int = 1) -> np.ndarray:
    """`values` as a flat float64 array of at least `least` finite numbers."""
    result = reals(values, name).ravel()
    if result.size < least or not np.all(np.isfinite(result)):
        raise ValueError(f"{name}: expected at least {least} finite numbers, got {_few(result)}; leave out the others")
    return result


def steps(T: Number, dt: Number) -> tuple[int, float]:
    """How many equal steps of at most dt make T, and their length. T = 0 is no step at all."""
    T, dt = real(T, "T", least=0), real(dt, "dt", above=0)
    if dt > T > 0:
        raise ValueError(f"dt: expected a step of at most T = {T:g}, got {dt:g}; take a smaller dt")
    if dt < T / MOST_STEPS:
        raise ValueError(f"dt: expected at most {MOST_STEPS} steps, got T = {T:g} and dt = {dt:g}; take a larger dt")
    number = int(np.ceil(T / dt - 1e-9))
    return number, (T / number if number else 0.0)


def _few(values: Array) -> str:
    shown = ", ".join(f"{v:g}" for v in values.ravel()[:4])
    shape = f" (shape {values.shape})" if values.ndim else ""
    return f"{shown}{', ...' if values.size > 4 else ''}{shape}" if values.size else "none"


__all__ = ["finite", "real", "reals", "steps"]
