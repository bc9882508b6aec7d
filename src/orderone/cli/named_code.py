"""Python code that an option names as package.module:name, such as `--builder mine:build`."""

import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from inspect import isfunction, signature
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


def load_builder(where: str) -> Callable[..., Any]:
    """Return the function (or the class of a model) that makes the user's model."""
    from torch import nn

    build = load(where, "builder")
    if isinstance(build, nn.Module):
        remedy = "it is a model; write a function of the width that returns one"
    elif not callable(build):
        remedy = "write a function of the width that returns a model"
    elif isinstance(build, type) and not issubclass(build, nn.Module):
        remedy = f"it is a class; write def build(width): return a model made with {build.__name__}"
    else:
        return build
    raise InputError(
        f"builder: expected a function of the width, but {where} is {_kind(build)}; {remedy}",
        "not-a-builder",
        argument="builder",
    )


def check_call(build: Callable[..., Any], where: str, *sizes: object, **named: object) -> None:
    """Raise an InputError if the builder cannot be called with these sizes."""
    try:
        parameters = signature(build)
    except (TypeError, ValueError):  # written in C
        return
    try:
        parameters.bind(*sizes, **named)
    except TypeError as error:
        words = [*map(str, sizes), *[f"{name}={value}" for name, value in named.items()]]
        raise InputError(
            f"builder: {where}{parameters} cannot be called with ({', '.join(words)}): {error};"
            " expected a function of the width, whose other parameters have defaults",
            "build-arguments",
            argument="builder",
        ) from error


def _kind(thing: object) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return f"a {type(thing).__name__}"


# --- reading --------------------------------------------------------------------------------------


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
        return f"{before}:{last}" if dot and before and last else None
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
