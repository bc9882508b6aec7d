"""Errors say what was expected, what came, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


def one_of(value: object, known: Iterable[str], kind: str) -> str:
    """`value` if it is one of the `known` names of this `kind`; otherwise a ValueError that lists them."""
    known = tuple(known)
    if isinstance(value, str) and value in known:
        return value
    near = get_close_matches(value, known, n=1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"unknown {kind}: expected one of {', '.join(known)}; got {value!r}{hint}")
