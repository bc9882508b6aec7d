"""Modules that were renamed: a file under the old name forwards to the new one and warns."""

import sys
import warnings
from collections.abc import Callable
from importlib import import_module

REMOVED_IN = "0.3"


def forward(old: str, new: str) -> Callable[[str], object]:
    """Return the `__getattr__` of a module that was renamed from `old` to `new`."""

    def get(name: str) -> object:
        if name.startswith("__"):  # Python itself asks for __path__ and the like
            raise AttributeError(name)
        value = getattr(import_module(new), name)
        message = f"{old} was renamed to {new}; the old name will be removed in {REMOVED_IN}"
        warnings.warn(message, DeprecationWarning, stacklevel=_level_of_the_user())
        return value

    return get


def _level_of_the_user() -> int:
    """Return the stack level of the line that imports: `from ... import` goes through importlib."""
    level = 2
    frame = sys._getframe(level)
    while "importlib" in frame.f_code.co_filename and frame.f_back is not None:
        frame = frame.f_back
        level += 1
    return level
