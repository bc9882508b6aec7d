"""Real numbers that users give, within the range in which they mean something."""

from math import inf, isfinite
from numbers import Real

from orderone.core.given import Number


def real(value: Number, name: str, least: Number = -inf, most: Number = inf, above: Number = -inf) -> float:
    """`value` as a finite float with least <= value <= most and value > above, or a ValueError that names it."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else None
    if number is None or not isfinite(number) or not least <= number <= most or number <= above:
        raise ValueError(f"{name}: expected a finite number{_range(least, most, above)}; got {value!r}")
    return number


def _range(least: Number, most: Number, above: Number) -> str:
    words = [(above, "above"), (least, "of at least"), (most, "of at most")]
    return " and".join(f" {word} {bound:g}" for bound, word in words if isfinite(bound))
