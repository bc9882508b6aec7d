"""Real numbers and lists of them as users type them: checked once, named in the error."""

import numpy as np

from orderone.core.given import Array, Number


def real(value: Number, name: str, *, above: Number | None = None, least: Number | None = None) -> float:
    """`value` as a finite float, greater than `above` and not less than `least`; otherwise a ValueError."""
    wanted = "a finite number" + (f" greater than {above:g}" if above is not None else "")
    wanted += f" of at least {least:g}" if least is not None else ""
    try:
        result = float("nan") if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        result = float("nan")
    low = (above is not None and result <= above) or (least is not None and result < least)
    if low or not np.isfinite(result):
        raise ValueError(f"{name}: expected {wanted}, got {value!r}")
    return result


def reals(values: Array, name: str, *, least: Number = -np.inf, most: Number = np.inf) -> np.ndarray:
    """`values`, one number or an array of them, as float64 within [least, most]."""
    try:
        result = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name}: expected numbers, got {values!r}") from error
    if result.size == 0 or not np.all((result >= least) & (result <= most)):
        raise ValueError(f"{name}: expected numbers in [{least:g}, {most:g}], got {_few(result)}")
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
    number = int(np.ceil(T / dt - 1e-9))
    return number, (T / number if number else 0.0)


def _few(values: Array) -> str:
    shown = ", ".join(f"{v:g}" for v in values.ravel()[:4])
    return f"{shown}{', ...' if values.size > 4 else ''} (shape {values.shape})" if values.size else "none"


__all__ = ["finite", "real", "reals", "steps"]
