"""Real numbers as users type them: checked once, named in the error. Without numpy, which not
everything here needs."""

from math import ceil, inf, isfinite, nan

from orderone.core.inputs import Number

MOST_STEPS = 10**7  # hours of work


def real(
    value: Number, name: str, least: Number = -inf, most: Number = inf, above: Number = -inf
) -> float:
    """`value` as a finite float with least <= value <= most and value > above, or a ValueError that
    names it."""
    try:
        number = nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = nan
    if not (isfinite(number) and least <= number <= most and number > above):
        raise ValueError(
            f"{name}: expected a finite number{_range(least, most, above)}; got {value!r}"
        )
    return number


def _range(least: Number, most: Number, above: Number) -> str:
    words = [(above, "above"), (least, "of at least"), (most, "of at most")]
    return " and".join(f" {word} {bound:g}" for bound, word in words if isfinite(bound))


def steps(T: Number, dt: Number) -> tuple[int, float]:
    """How many equal steps of at most dt make T, and their length. T = 0 is no step at all."""
    T = real(T, "T", least=0)
    dt = real(dt, "dt", above=0)
    if dt > T > 0:
        raise ValueError(f"dt: expected a step of at most T = {T:g}, got {dt:g}; take a smaller dt")
    if dt < T / MOST_STEPS:
        raise ValueError(
            f"dt: expected at most {MOST_STEPS} steps, got T = {T:g} and dt = {dt:g}; take a"
            " larger dt"
        )
    number = ceil(T / dt - 1e-9)
    return number, (T / number if number else 0.0)
