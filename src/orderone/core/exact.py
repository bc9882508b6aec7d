"""Exact rationals. Exponents are compared with `==`, so a float that only looks like 1/10 must not get in."""

from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import TypeAlias

Exact: TypeAlias = Fraction | int | str | float | Decimal  # what users may type; floats only if they are exact

# A float is a dyadic number: 0.5 and 0.375 are what they say, 0.1 is 3602879701896397/2**55.
LARGEST_FLOAT_DENOMINATOR = 1024


def exact(value: object, name: str) -> Fraction:
    """`value` as a Fraction, or a ValueError naming the argument."""
    if isinstance(value, bool) or not isinstance(value, (Rational, str, float, Decimal)):
        raise ValueError(f"{name}: expected an exact number (Fraction, int or '1/2'), got {value!r}")
    try:
        result = Fraction(value)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise ValueError(f"{name}: expected an exact number such as Fraction(1, 2) or '1/2', got {value!r}") from error
    if isinstance(value, float) and result.denominator > LARGEST_FLOAT_DENOMINATOR:
        raise ValueError(
            f"{name}: expected an exact number, got the float {value!r}, whose exact value is {result}; "
            f"write Fraction('{value!r}') or '{result.limit_denominator(100)}'"
        )
    return result


def power(exponent: Fraction, base: str = "n") -> str:
    """`n^(1/2)`, `n^-1`, or `1`: a power law as people write it."""
    if exponent == 0:
        return "1"
    if exponent == 1:
        return base
    return f"{base}^{exponent}" if exponent.denominator == 1 else f"{base}^({exponent})"
