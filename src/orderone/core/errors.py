"""Errors say what was expected, what came, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, TypeVar

T = TypeVar("T")


def one_of(value: object, known: Iterable[str], kind: str) -> str:
    """The one of the `known` names that `value` is, in any case; otherwise a ValueError that lists
    them."""
    known = tuple(known)
    found = value.lower() if isinstance(value, str) else value
    if found in known:
        return str(found)
    near = get_close_matches(found, known, n=1) if isinstance(found, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {kind}: expected one of {', '.join(known)}; got {value!r}{hint}")


def instance(value: Any, of: type[T], name: str, remedy: str) -> T:
    """`value` if it is one, otherwise a ValueError with the way to get one."""
    if isinstance(value, of):
        return value
    raise ValueError(f"{name}: expected a {of.__name__}, got {value!r}; {remedy}")


def function(value: Any, name: str, what: str) -> None:
    """Where a function may be given: a ValueError for anything else."""
    if value is not None and not callable(value):
        raise ValueError(f"{name}: expected a function {what}, got {value!r}")
