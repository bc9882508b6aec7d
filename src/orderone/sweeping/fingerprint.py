"""What a function is, so that a changed one is another: its name, its code, and the values it has captured.

The code is the syntax tree of its source, which comments and spaces do not change; of a lambda, or where there is no
source, the bytecode. Functions and classes of the same file that it names belong to it.
"""

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
from torch import Tensor, nn

SIMPLE = (bool, int, float, str, bytes, type(None))
DEEP = 6  # nesting of values that is looked into


def identity(thing: Any, seen: frozenset[int] = frozenset()) -> Any:
    """JSON that differs where two things differ; what cannot be looked into is told by its type."""
    if isinstance(thing, (*SIMPLE, np.generic)):
        return _simple(thing)
    if id(thing) in seen or len(seen) > DEEP * 4:
        return "..."
    seen = seen | {id(thing)}
    if isinstance(thing, functools.partial):
        return ["partial", *(identity(x, seen) for x in (thing.func, thing.args, thing.keywords))]
    if isinstance(thing, MethodType):
        return ["method", identity(thing.__func__, seen), identity(thing.__self__, seen)]
    if isinstance(thing, FunctionType):
        return _function(thing, seen)
    if isinstance(thing, type):
        return _class(thing, seen)
    return _value(thing, seen)


def _simple(thing: Any) -> Any:
    thing = thing.item() if isinstance(thing, np.generic) else thing
    return thing if isinstance(thing, (str, bool, int, type(None))) else repr(thing)


def _value(thing: Any, seen: frozenset[int]) -> Any:
    if isinstance(thing, Tensor):
        return ["tensor", str(thing.dtype), list(thing.shape), None if thing.is_meta else _bytes(thing)]
    if isinstance(thing, np.ndarray):
        return ["array", str(thing.dtype), list(thing.shape), hashlib.sha256(thing.tobytes()).hexdigest()]
    if isinstance(thing, nn.Module):
        return ["module", type(thing).__qualname__, {name: identity(p, seen) for name, p in thing.named_parameters()}]
    if isinstance(thing, Mapping):
        return ["mapping", [[str(key), identity(value, seen)] for key, value in thing.items()]]
    if isinstance(thing, (list, tuple, range)):
        return [identity(value, seen) for value in thing]
    if isinstance(thing, (set, frozenset)):
        return ["set", sorted(map(str, thing))]
    fields = getattr(thing, "__dict__", {})
    return [type(thing).__qualname__, {name: identity(value, seen) for name, value in sorted(fields.items())}]


def _bytes(tensor: Tensor) -> str:
    import torch

    plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(plain.numpy().tobytes()).hexdigest()


def _function(function: FunctionType, seen: frozenset[int]) -> Any:
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return identity(function, seen)
    captured = {}
    if function.__closure__:
        cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
        captured = {name: identity(value, seen) for name, cell in cells if (value := _content(cell)) is not function}
    defaults = [function.__defaults__ or (), function.__kwdefaults__ or {}]
    named = _named(function.__code__, function, seen)
    return [function.__qualname__, _code(function), captured, [identity(x, seen) for x in defaults], named]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _class(kind: type, seen: frozenset[int]) -> Any:
    named: dict[str, Any] = {}
    for attribute in vars(kind).values():
        if isinstance(attribute, FunctionType):
            named |= _named(attribute.__code__, attribute, seen | {id(kind)})
    return [kind.__qualname__, _source(kind) or "", named]


def _named(code: CodeType, function: FunctionType, seen: frozenset[int]) -> dict[str, Any]:
    """Globals it uses: simple values, and functions and classes that are written in the same module."""
    found: dict[str, Any] = {}
    for name in sorted(_names(code)):
        value = function.__globals__.get(name)
        own = isinstance(value, (FunctionType, type)) and value.__module__ == function.__module__
        if name in function.__globals__ and (own or isinstance(value, SIMPLE)):
            found[name] = identity(value, seen)
    return found


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _code(function: FunctionType) -> str:
    source = None if function.__name__ == "<lambda>" else _source(function)
    return _bytecode(function.__code__) if source is None else source


def _source(thing: Any) -> str | None:
    try:
        text = textwrap.dedent(inspect.getsource(thing))
        return hashlib.sha256(ast.dump(ast.parse(text)).encode()).hexdigest()
    except (OSError, TypeError, SyntaxError):  # no file, or a piece that is no statement of its own
        return None


def _bytecode(code: CodeType) -> str:
    constants = [_bytecode(x) if isinstance(x, CodeType) else repr(x) for x in code.co_consts]
    parts = [code.co_code.hex(), *constants, *code.co_names, *code.co_varnames]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
