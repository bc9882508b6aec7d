"""Real numbers that users pass; errors name the argument. Needs no numpy."""

from contextlib import suppress
from math import ceil, inf, isfinite, nan

from orderone.core.errors import InputError, as_passed
from orderone.core.inputs import Number

MOST_STEPS = 10**7  # hours of work


def real(
    value: Number, name: str, least: Number = -inf, most: Number = inf, above: Number = -inf
) -> float:
    """Return `value` as a finite float with least <= value <= most and value > above.

    Otherwise raise an InputError that names the argument.
    """
    number = nan
    if not isinstance(value, bool | str):
        with suppress(TypeError, ValueError, OverflowError, RuntimeError):
            number = float(value)
    if not (isfinite(number) and least <= number <= most and number > above):
        raise InputError(
            f"{name}: expected a finite number{_range(least, most, above)}; got {as_passed(value)}",
            argument=name,
        )
    return number


def _range(least: Number, most: Number, above: Number) -> str:
    words = [(above, "above"), (least, "of at least"), (most, "of at most")]
    return " and".join(f" {word} {bound:g}" for bound, word in words if isfinite(bound))


def steps(T: Number, dt: Number) -> tuple[int, float]:
    """Return the number of equal steps of at most `dt` that make `T`, and their length.

    T = 0 takes no step.
    """
    T = real(T, "T", least=0)
    dt = real(dt, "dt", above=0)
    if dt > T > 0:
        raise InputError(
            f"dt: expected a step of at most T = {T:g}, got {dt:g}; take a smaller dt",
            argument="dt",
        )
    if dt < T / MOST_STEPS:
        raise InputError(
            f"dt: expected at most {MOST_STEPS} steps, got T = {T:g} and dt = {dt:g}; take a"
            " larger dt",
            argument="dt",
        )
    number = ceil(T / dt - 1e-9)
    if number == 0:
        return 0, 0.0
    return number, T / number
