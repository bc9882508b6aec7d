"""Exact rationals.

Exponents are compared with `==`, so floats such as 0.1, which is not exactly 1/10, are refused.
"""

from decimal import Decimal
from fractions import Fraction
from numbers import Rational, Real
from operator import index

from orderone.core.errors import InputError, as_passed

ZERO = Fraction(0)
HALF = Fraction(1, 2)
ONE = Fraction(1)

# Floats have denominators that are powers of 2: 0.375 is exactly 3/8, but 0.1 is
# 3602879701896397/2**55.
LARGEST_FLOAT_DENOMINATOR = 1024
LARGEST_COUNT = 10**300  # a larger one is no float


def exact(value: object, name: str) -> Fraction:
    """Return `value` as a Fraction, or raise an InputError that names the argument."""
    if isinstance(value, bool) or not isinstance(value, (Real, str, Decimal)):
        raise InputError(
            f"{name}: expected an exact number (Fraction, int or '1/2'), got {value!r}",
            argument=name,
        )
    try:
        result = _fraction(value)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise InputError(
            f"{name}: expected an exact number such as Fraction(1, 2) or '1/2', got {value!r}",
            argument=name,
        ) from error
    is_float = isinstance(value, Real) and not isinstance(value, Rational)
    if is_float and result.denominator > LARGEST_FLOAT_DENOMINATOR:
        raise InputError(
            f"{name}: expected an exact number, got the float {float(value)!r}, whose exact value"
            f" is {result}; write Fraction('{float(value)!r}') or"
            f" '{result.limit_denominator(100)}'",
            "inexact-number",
            argument=name,
        )
    return result


def _fraction(value: Real | str | Decimal) -> Fraction:
    """Return the exact value; numbers of numpy become Python's first, which do not overflow."""
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    if isinstance(value, Real):
        return Fraction(float(value))
    return Fraction(value)


def count(value: object, name: str, least: int = 1, most: int | None = None) -> int:
    """Return `value` as an int in [least, most], or raise an InputError that names the argument."""
    try:
        result = index(value)  # type: ignore[arg-type]
    except TypeError:
        result = None
    if result is None or isinstance(value, bool) or result < least:
        raise InputError(
            f"{name}: expected a whole number, {least} or more; got {as_passed(value)}",
            argument=name,
        )
    if most is not None and result > most:
        raise InputError(f"{name}: expected at most {most}; got {result}", argument=name)
    if result > LARGEST_COUNT:
        raise InputError(f"{name}: expected at most {LARGEST_COUNT:.0e}", argument=name)
    return result


def power(exponent: Fraction, base: str = "n") -> str:
    """Return a power law as text: `n^(1/2)`, `n^-1`, or `1`."""
    if exponent == 0:
        return "1"
    if exponent == 1:
        return base
    if exponent.denominator == 1:
        return f"{base}^{exponent}"
    return f"{base}^({exponent})"
