"""Functions that an option names as package.module:name, such as `--builder mine:build`."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from orderone.core.errors import InputError
from orderone.core.named_code import load


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
