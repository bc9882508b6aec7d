"""Checks of single values. Errors say what was expected, what came, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeVar

T = TypeVar("T")


def one_of(value: object, known: Iterable[str], kind: str) -> str:
    """Return the name in `known` that equals `value` in lower case.

    Otherwise raise a ValueError that lists the names.
    """
    known = tuple(known)
    hint = ""
    if isinstance(value, str):
        name = value.lower()
        if name in known:
            return name
        near = get_close_matches(name, known, n=1)
        if near:
            hint = f"; did you mean {near[0]!r}?"
    raise ValueError(f"unknown {kind}: expected one of {', '.join(known)}; got {value!r}{hint}")


def instance(value: object, of: type[T], name: str, remedy: str) -> T:
    """Return `value` if it is an instance of `of`; otherwise raise a ValueError with the remedy."""
    if isinstance(value, of):
        return value
    raise ValueError(f"{name}: expected a {of.__name__}, got {value!r}; {remedy}")


def function(value: object, name: str, what: str) -> None:
    """Raise a ValueError unless `value` is a function or None."""
    if value is not None and not callable(value):
        raise ValueError(f"{name}: expected a function {what}, got {value!r}")
