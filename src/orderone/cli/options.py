"""How options read in `--help`: a plain type, and a default only where there is one to tell."""

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, getdoc, signature
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import tyro

METAVARS = {int: "INT", float: "FLOAT", str: "STR"}


def readable(verb: Callable[..., None]) -> Callable[..., None]:
    """The same verb, without `{None}|STR` and `(default: None)`: what is None by default is told by
    its own words."""
    given = signature(verb)
    hints = get_type_hints(verb, include_extras=True)
    parameters = [
        each.replace(annotation=_told(each, hints[name])) for name, each in given.parameters.items()
    ]

    @wraps(verb)
    def told(*arguments: Any, **options: Any) -> None:
        verb(*arguments, **options)

    del told.__wrapped__  # tyro would look at the verb itself
    vars(told)["__signature__"] = given.replace(parameters=parameters)
    told.__annotations__ = {each.name: each.annotation for each in parameters}
    told.__doc__ = re.sub(
        r"\n {8}(?=\S)", " ", getdoc(verb) or ""
    )  # or it would keep the breaks of our lines
    return told


def _told(parameter: Parameter, hint: Any) -> Any:
    if parameter.default is None:
        metavar = _metavar(hint, optional=parameter.kind is Parameter.POSITIONAL_ONLY)
        return Annotated[hint, tyro.conf.arg(metavar=metavar, help_behavior_hint="")]
    if isinstance(parameter.default, bool):
        return Annotated[hint, tyro.conf.arg(name=_own_name(hint), help_behavior_hint="")]
    return hint


def _metavar(hint: Any, optional: bool) -> str:
    if hasattr(hint, "__metadata__"):
        kinds = get_args(get_args(hint)[0])
    else:
        kinds = get_args(hint)
    word = METAVARS[next(kind for kind in kinds if kind is not NoneType)]
    return f"[{word}]" if optional else word


def _own_name(hint: Any) -> str | None:
    return next(
        (each.name for each in getattr(hint, "__metadata__", ()) if hasattr(each, "name")), None
    )
