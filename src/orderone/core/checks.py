"""Conditions on arrays that users give: a ValueError names the argument, the first value that is
wrong, and the way out."""

from typing import Any

from orderone.core.inputs import Number


def at_least(xp: Any, array: Any, low: Number, name: str, remedy: str) -> Any:
    """The array, if all of it is finite and `low` or more."""
    return _all(
        xp, array, xp.isfinite(array) & (array >= low), name, f"{low:g} or more, and finite", remedy
    )


def within(xp: Any, array: Any, low: Number, high: Number, name: str, remedy: str) -> Any:
    """The array, if all of it lies in [low, high]."""
    return _all(
        xp, array, (array >= low) & (array <= high), name, f"between {low:g} and {high:g}", remedy
    )


def keep_rate(xp: Any, array: Any, name: str = "keep") -> Any:
    """The array, if all of it lies in (0, 1]."""
    remedy = "it is the rate at which units are kept, 1 minus the dropout rate"
    return _all(xp, array, (array > 0) & (array <= 1), name, "in (0, 1]", remedy)


def variance(xp: Any, array: Any, name: str) -> Any:
    """The array, if all of it can be a variance."""
    return at_least(xp, array, 0, name, "give a variance, not a standard deviation")


def _all(xp: Any, array: Any, right: Any, name: str, expected: str, remedy: str) -> Any:
    if not bool(xp.all(right)):
        wrong = float(
            xp.reshape(array, (-1,))[int(xp.argmin(xp.astype(xp.reshape(right, (-1,)), xp.int8)))]
        )
        raise ValueError(f"{name}: expected {expected}; got {wrong!r}; {remedy}")
    return array
