"""`typing.no_type_check` for functions whose types remain public.

Static checkers drop the types of a function that has the decorator of `typing`. This one has the
same effect at run time only: tests that check types leave the function alone, so that a compiler
can read it.
"""

import typing
from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def no_type_check(function: Function) -> Function:
    """Mark a function that a compiler reads; return it."""
    return typing.no_type_check(function)
