"""Rules and axes of other packages, by entry points of the group `orderone.rules`.

A package declares them in its pyproject.toml:

    [project.entry-points."orderone.rules"]
    mine = "my_package:MINE"

The object is a `RuleTable` (a rule), an `Axis`, or a `Composition` of rules and axes. It is loaded
when its name is asked for. A built-in rule of the same name counts first.
"""

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from orderone.core.errors import InputError

GROUP = "orderone.rules"
T = TypeVar("T")


def plugins(kind: type[T]) -> Mapping[str, T]:
    """Return the objects of this kind that installed packages provide, by name.

    Entry points that cannot be loaded are left out; `plugin` says why.
    """
    found: dict[str, T] = {}
    for name, entry in _entries(tuple(sys.path)).items():
        value = _loaded(entry)
        if isinstance(value, kind):
            found[name] = value
    return found


def plugin(name: object, kind: type[T]) -> T | None:
    """Return the object with this name; None if no package provides one.

    Raise an InputError if its package cannot be imported.
    """
    if isinstance(name, str):
        entry = _entries(tuple(sys.path)).get(name)
    else:
        entry = None
    if entry is None:
        return None
    value = _loaded(entry)
    if isinstance(value, Exception):
        raise InputError(
            f"{name}: the entry point {entry.value} of the group {GROUP} cannot be loaded"
            f" ({type(value).__name__}: {value}); repair or uninstall its package",
            "broken-plugin",
        ) from value
    return value if isinstance(value, kind) else None


@lru_cache
def _entries(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points of packages on `path`, which is sys.path."""
    entries: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        entries.setdefault(entry.name.lower(), entry)
    return entries


def _loaded(entry: EntryPoint) -> object:
    """Return the object of an entry point, or the error that its package raises."""
    try:
        return entry.load()
    except Exception as error:  # code of another package may raise anything
        return error
