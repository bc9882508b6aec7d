"""What users may type. Functions that take these read them themselves and raise ValueErrors that
say what to do, so the run-time type checks of the test suite leave them alone; static checkers see
the real types."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    Exact: TypeAlias = Fraction | int | str | float | Decimal  # floats only if they are exact
    Name: TypeAlias = str
    Count: TypeAlias = int
    Number: TypeAlias = float
    Array: TypeAlias = Any  # numpy or torch; what came in comes out
    Function: TypeAlias = Callable[[Any], Any]  # elementwise
    GivenExponents: TypeAlias = Mapping[str, Exact] | Sequence[Exact]
    GivenConstraints: TypeAlias = str | Iterable[str | Mapping[str, Exact]] | Mapping[str, Exact]
else:
    Array = Exact = Name = Count = Number = Function = GivenExponents = GivenConstraints = (
        ArrayLike
    ) = Any

__all__ = [
    "Array",
    "ArrayLike",
    "Count",
    "Exact",
    "Function",
    "GivenConstraints",
    "GivenExponents",
    "Name",
    "Number",
]
