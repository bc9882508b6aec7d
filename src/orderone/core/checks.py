"""Conditions on arrays that users pass.

Each function returns the array, or raises an InputError with the name of the argument, the first
wrong value, and what to do.
"""

from types import ModuleType

from orderone.core.errors import InputError
from orderone.core.inputs import Array, Number


def at_least(xp: ModuleType, array: Array, low: Number, name: str, remedy: str) -> Array:
    """Return the array if every number is finite and at least `low`."""
    valid = xp.isfinite(array) & (array >= low)
    return _all(xp, array, valid, name, f"{low:g} or more, and finite", remedy)


def within(
    xp: ModuleType, array: Array, low: Number, high: Number, name: str, remedy: str
) -> Array:
    """Return the array if every number lies in [low, high]."""
    valid = (array >= low) & (array <= high)
    return _all(xp, array, valid, name, f"between {low:g} and {high:g}", remedy)


def keep_rate(xp: ModuleType, array: Array, name: str = "keep") -> Array:
    """Return the array if every number lies in (0, 1]."""
    valid = (array > 0) & (array <= 1)
    remedy = "the keep rate is 1 minus the dropout rate"
    return _all(xp, array, valid, name, "in (0, 1]", remedy)


def variance(xp: ModuleType, array: Array, name: str) -> Array:
    """Return the array if every number can be a variance."""
    return at_least(xp, array, 0, name, "pass a variance, not a standard deviation")


def _all(
    xp: ModuleType, array: Array, valid: Array, name: str, expected: str, remedy: str
) -> Array:
    if bool(xp.all(valid)):
        return array
    flags = xp.astype(xp.reshape(valid, (-1,)), xp.int8)
    first_wrong = float(xp.reshape(array, (-1,))[int(xp.argmin(flags))])
    raise InputError(f"{name}: expected {expected}; got {first_wrong!r}; {remedy}", argument=name)
