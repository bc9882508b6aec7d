"""Records of JSON as dataclasses: the types of the fields are the schema.

`read_record(Row, value, "rows[3]")` returns a `Row`, or raises a `SchemaError` that names the first
field that does not fit, and what was expected there. Numbers must be finite: JSON has no others,
but Python's reader accepts them.

`limits` has conditions on numbers by the name of the field.
"""

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import (
    Annotated,
    Any,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")
Limit: TypeAlias = tuple[str, Callable[[Any], bool]]  # what is expected, and the condition
Limits: TypeAlias = Mapping[str, Limit]  # by field
NO_LIMITS: Limits = {}
LONGEST = 60  # characters of a value in a message


class SchemaError(ValueError):
    """A field that does not fit the schema: `rows[3].lr: expected a finite number, got null`."""

    field: str = ""
    expected: str = ""


def _mismatch(field: str, expected: str, got: object) -> SchemaError:
    error = SchemaError(f"{field}: expected {expected}, got {_short(got)}")
    error.field = field
    error.expected = expected
    return error


def read_json(path: str | PathLike[str]) -> object:
    """Read a JSON file; raise a ValueError for anything else, OSError if it cannot be read."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def read_record(kind: type[T], value: object, name: str, limits: Limits = NO_LIMITS) -> T:
    """Return a dataclass made of a JSON object; `name` is the place of the object in its file."""
    if not isinstance(value, dict):
        raise _mismatch(name, "an object", value)
    hints = _hints(kind)
    known = {entry.name: entry for entry in fields(kind) if entry.init}  # type: ignore[arg-type]
    for key in value:
        if key not in known:
            raise _mismatch(_place(name, key), "no such field", value[key])
    arguments: dict[str, object] = {}
    for key, entry in known.items():
        if key in value:
            arguments[key] = read_value(hints[key], value[key], _place(name, key), limits)
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise _mismatch(_place(name, key), "a value", "none")
    return kind(**arguments)


def read_value(hint: Any, value: object, name: str, limits: Limits = NO_LIMITS) -> Any:
    """Return a value of JSON as the type of a field."""
    result = _convert(hint, value, name, limits)
    field_name = name.rpartition(".")[2].partition("[")[0]
    expected, holds = limits.get(field_name, ("", None))
    if holds is not None and isinstance(result, (int, float)) and not holds(result):
        raise _mismatch(name, expected, value)
    return result


def _convert(hint: Any, value: object, name: str, limits: Limits) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        return _convert(get_args(hint)[0], value, name, limits)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(hint), value, name, limits)
    if origin is tuple:
        return _tuple(get_args(hint), value, name, limits)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, dict):
            raise _mismatch(name, "an object", value)
        inner = get_args(hint)[1]
        return {key: read_value(inner, x, _place(name, key), limits) for key, x in value.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        return read_record(hint, value, name, limits)
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError:
            names = ", ".join(str(member.value) for member in hint)
            raise _mismatch(name, f"one of {names}", value) from None
    return _scalar(hint, value, name)


def _scalar(hint: Any, value: object, name: str) -> Any:
    if hint is type(None):
        if value is not None:
            raise _mismatch(name, "null", value)
        return None
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _fits(value):
            raise _mismatch(name, "a finite number", value)
        return float(value)
    if hint is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise _mismatch(name, "a whole number", value)
        return value
    if hint in (str, bool):
        if not isinstance(value, hint):
            raise _mismatch(name, "a text" if hint is str else "true or false", value)
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise _mismatch(name, "a text of valid Unicode", value)
        return value
    assert hint is object, f"{name}: no schema for {hint}"
    return value


def _fits(number: int | float) -> bool:
    try:
        return isfinite(number)
    except OverflowError:  # an integer that is larger than any float
        return False


def _one_of(hints: tuple[Any, ...], value: object, name: str, limits: Limits) -> Any:
    """Return the value as the first type that it fits."""
    errors: list[SchemaError] = []
    for hint in hints:
        try:
            return _convert(hint, value, name, limits)
        except SchemaError as error:
            errors.append(error)
    deepest = max(errors, key=lambda error: len(error.field))
    if deepest.field != name:
        raise deepest
    expected = " or ".join(
        str(error).split(": expected ")[1].split(", got ")[0] for error in errors
    )
    raise _mismatch(name, expected, value)


def _tuple(hints: tuple[Any, ...], value: object, name: str, limits: Limits) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _mismatch(name, "a list", value)
    if len(hints) == 2 and hints[1] is Ellipsis:
        hints = (hints[0],) * len(value)
    if len(value) != len(hints):
        raise _mismatch(name, f"a list of {len(hints)}", value)
    parts = []
    for number, (hint, part) in enumerate(zip(hints, value, strict=True)):
        parts.append(read_value(hint, part, f"{name}[{number}]", limits))
    return tuple(parts)


@lru_cache(maxsize=64)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _place(name: str, key: str) -> str:
    if name:
        return f"{name}.{key}"
    return key


def _short(value: object) -> str:
    try:
        text = json.dumps(value, default=str)
    except (ValueError, RecursionError):
        text = str(type(value))
    if len(text) > LONGEST:
        return f"{text[:LONGEST]}..."
    return text
