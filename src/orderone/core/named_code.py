"""Python code that a user names as package.module:name."""

import os
import sys
from difflib import get_close_matches
from importlib import import_module
from inspect import isfunction
from pathlib import PurePath
from types import ModuleType
from typing import Any

from orderone.core.errors import InputError

FORM = "package.module:function"


def load(where: str, name: str) -> Any:
    """Import `package.module:thing` from the current folder, as `python -m` would."""
    module_name, thing = _parts(where, name)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_module(module_name)
    except Exception as error:  # the user's module may raise anything
        message = f"{name}: cannot import {module_name} ({type(error).__name__}: {error})"
        raise InputError(message, "cannot-import", argument=name) from error
    try:
        return getattr(module, thing)
    except AttributeError as error:
        message = f"{name}: {module_name} has no {thing}{_other_names(module, thing)}"
        raise InputError(message, "cannot-import", argument=name) from error


def _parts(where: str, name: str) -> tuple[str, str]:
    """Return module and name; raise an InputError that shows the right form."""
    module, colon, thing = where.rpartition(":")
    if not colon:
        module = ""
        thing = where
    right = _right_form(module, thing)
    if module and right == where:
        return module, thing
    message = f"{name}: expected {FORM}, got {where!r}"
    if right is not None and right != where:
        message += f"; write {right}"
    raise InputError(message, "wrong-name-of-code", argument=name)


def _right_form(module: str, thing: str) -> str | None:
    """Return the right form of a name; None if it cannot be guessed."""
    thing = thing.partition("(")[0].strip()
    if not module and thing.endswith(".py"):
        return f"{_module_name(thing)}:function"
    if not module:
        before, dot, last = thing.rpartition(".")
        if dot and before and last:
            return f"{before}:{last}"
        return None
    if not thing:
        return f"{_module_name(module)}:function"
    return f"{_module_name(module)}:{thing}"


def _module_name(text: str) -> str:
    """Return the module of a file: models/gpt.py is models.gpt."""
    is_path = text.endswith(".py") or "/" in text or "\\" in text
    if not is_path:
        return text
    path = PurePath(text.replace("\\", "/"))
    parts = path.parts[:-1]
    if path.is_absolute() or ".." in parts:
        parts = ()  # not below the current folder: run the command in the file's folder
    stem = path.name.removesuffix(".py")
    return ".".join([*parts, stem])


def _other_names(module: ModuleType, thing: str) -> str:
    names: list[str] = []
    for name, value in vars(module).items():
        defined_here = getattr(value, "__module__", None) == module.__name__
        if isfunction(value) and defined_here and not name.startswith("_"):
            names.append(name)
    close = get_close_matches(thing, names, 1)
    if close:
        return f"; did you mean {module.__name__}:{close[0]}?"
    if names:
        return f"; its functions are {', '.join(names)}"
    return "; it defines no function"
