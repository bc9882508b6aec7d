"""Types of the values that users pass.

The function that takes such a value validates it and raises an InputError that says what to do. The
run-time type checks of the test suite therefore skip these parameters: `UserInput` marks them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from orderone.core.roles import Role

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
else:
    ArrayLike = object  # numpy is loaded by the functions that need it


class UserInput:
    """Mark a type whose values are validated by the function that takes them."""


# An array of numpy, torch, or any library that follows the array API. Theory computes in the
# library of its inputs; Python's type system cannot say that the result is of the same one.
Array: TypeAlias = Any

Exact: TypeAlias = Annotated[Fraction | int | str | float | Decimal, UserInput]
Name: TypeAlias = Annotated[str, UserInput]
Count: TypeAlias = Annotated[int, UserInput]
Number: TypeAlias = Annotated[float, UserInput]
Flag: TypeAlias = Annotated[bool, UserInput]
Function: TypeAlias = Annotated[Callable[[Array], Array], UserInput]  # elementwise
ExponentsInput: TypeAlias = Annotated[
    Mapping[str, Exact] | Mapping[Role, Exact] | Sequence[Exact], UserInput
]
ConstraintsInput: TypeAlias = Annotated[
    str | Iterable[str | Mapping[str, Exact]] | Mapping[str, Exact], UserInput
]

__all__ = [
    "Array",
    "ArrayLike",
    "ConstraintsInput",
    "Count",
    "Exact",
    "ExponentsInput",
    "Function",
    "Name",
    "Number",
    "UserInput",
]
