"""Options in `--help`: a plain type, and a default only where it says something."""

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, getdoc, signature
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import tyro

METAVARS: dict[type, str] = {int: "INT", float: "FLOAT", str: "STR"}


def readable(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the same verb, with help that shows no `{None}|STR` and no `(default: None)`.

    The text of an option says what None means.
    """
    original = signature(verb)
    hints = get_type_hints(verb, include_extras=True)
    parameters = []
    for name, parameter in original.parameters.items():
        parameters.append(parameter.replace(annotation=_annotation(parameter, hints[name])))

    @wraps(verb)
    def wrapper(*arguments: object, **options: object) -> None:
        verb(*arguments, **options)

    del wrapper.__wrapped__  # tyro would look at the verb itself
    vars(wrapper)["__signature__"] = original.replace(parameters=parameters)
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    # Continuation lines become one line: tyro would keep our line breaks.
    wrapper.__doc__ = re.sub(r"\n {8}(?=\S)", " ", getdoc(verb) or "")
    return wrapper


def _annotation(parameter: Parameter, hint: Any) -> Any:
    if parameter.default is None:
        metavar = _metavar(hint, optional=parameter.kind is Parameter.POSITIONAL_ONLY)
        return Annotated[hint, tyro.conf.arg(metavar=metavar, help_behavior_hint="")]
    if isinstance(parameter.default, bool):
        return Annotated[hint, tyro.conf.arg(name=_declared_name(hint), help_behavior_hint="")]
    return hint


def _metavar(hint: Any, optional: bool) -> str:
    if hasattr(hint, "__metadata__"):
        kinds = get_args(get_args(hint)[0])
    else:
        kinds = get_args(hint)
    (word,) = [METAVARS[kind] for kind in kinds if kind is not NoneType]
    if optional:
        return f"[{word}]"
    return word


def _declared_name(hint: Any) -> str | None:
    """Return the name of an option that `tyro.conf.arg` gives it."""
    for mark in getattr(hint, "__metadata__", ()):
        if hasattr(mark, "name"):
            return mark.name
    return None
