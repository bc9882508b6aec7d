"""What a function is, so that a changed one is another: its name, its code, and the values it has
captured.

The code is the syntax tree of its source, which comments and spaces do not change; of a lambda, or
where there is no source, the bytecode. Functions, classes and values of the same file that it names
belong to it, and so does the class of an object that is called. Libraries are told by name; objects
of theirs that hold no plain data by their type.
"""

import argparse
import ast
import functools
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SIMPLE = (bool, int, float, str, bytes, type(None))
PRINTED = (
    torch.dtype,
    torch.device,
    PurePath,
    Enum,
    Fraction,
    Decimal,
    complex,
    slice,
    np.dtype,
)  # told by their text
CACHED = functools._lru_cache_wrapper
DATA = (
    *SIMPLE,
    *PRINTED,
    CACHED,
    np.generic,
    np.ndarray,
    Tensor,
    nn.Module,
    Mapping,
    list,
    tuple,
    range,
    set,
    frozenset,
    functools.partial,
    MethodType,
    SimpleNamespace,
    argparse.Namespace,
)
DEEP = 24  # nesting of values that is looked into


def identity(thing: Any) -> Any:
    """JSON that differs where two things differ; what cannot be looked into is told by its type."""
    return _Look().called(thing)


@dataclass
class _Look:
    """Functions, classes and objects are told in full once, and then by number: they may use each
    other as they like."""

    told: dict[int, Any] = field(default_factory=dict)  # by id; held, so that no other gets that id
    inside: list[int] = field(default_factory=list)  # values that are being looked into

    def called(self, thing: Any) -> Any:
        """What the user has given: it is looked into wherever it is written."""
        if isinstance(thing, (FunctionType, type)):
            return self.code(thing)
        return self.at(thing)

    def at(self, thing: Any) -> Any:
        if isinstance(thing, (FunctionType, type)):
            if _of_a_library(thing):
                return _name(thing)
            return self.code(thing)
        if isinstance(thing, (*SIMPLE, np.generic)):
            return _simple(thing)
        if isinstance(thing, PRINTED):
            return [type(thing).__qualname__, str(thing)]
        if id(thing) in self.inside or len(self.inside) > DEEP:
            return "..."
        self.inside.append(id(thing))
        try:
            return self.value(thing)
        finally:
            self.inside.pop()

    # --- values -----------------------------------------------------------------------------------

    def value(self, thing: Any) -> Any:
        if isinstance(thing, functools.partial):
            return [
                "partial",
                self.called(thing.func),
                self.at(thing.args),
                self.at(thing.keywords),
            ]
        if isinstance(thing, MethodType):
            return ["method", self.called(thing.__func__), self.at(thing.__self__)]
        if isinstance(thing, CACHED):
            return ["cached", self.called(thing.__wrapped__)]
        if isinstance(thing, (Tensor, np.ndarray)):
            return _array(thing)
        if isinstance(thing, nn.Module):
            return self.module(thing)
        if isinstance(thing, Mapping):
            return ["mapping", [[str(key), self.at(value)] for key, value in thing.items()]]
        if isinstance(thing, (list, tuple, range)):
            return [self.at(value) for value in thing]
        if isinstance(thing, (set, frozenset)):
            return ["set", sorted(map(str, thing))]
        if isinstance(thing, ModuleType) or (
            callable(thing) and hasattr(thing, "__qualname__")
        ):  # written in C
            return _name(thing)
        return self.object(thing)

    def object(self, thing: Any) -> Any:
        if id(thing) in self.told:
            return self.again(thing)
        self.told[id(thing)] = thing
        return [
            self.at(type(thing)),
            {name: self.at(value) for name, value in sorted(_fields(thing).items())},
        ]

    def again(self, thing: Any) -> Any:
        return ["again", list(self.told).index(id(thing))]

    def module(self, module: nn.Module) -> Any:
        tensors = {
            name: self.at(x) for name, x in [*module.named_parameters(), *module.named_buffers()]
        }
        parts = {
            name: [self.at(type(part)), self.settings(part)]
            for name, part in module.named_modules()
        }
        return ["module", parts, tensors]

    def settings(self, module: nn.Module) -> Any:
        own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        return {
            name: self.at(value)
            for name, value in own.items()
            if isinstance(value, (*SIMPLE, tuple))
        }

    # --- code -------------------------------------------------------------------------------------

    def code(self, thing: Any) -> Any:
        if id(thing) in self.told:
            return self.again(thing)
        self.told[id(thing)] = thing
        if isinstance(thing, type):
            return self.class_(thing)
        return self.function(thing)

    def function(self, given: FunctionType) -> Any:
        function = inspect.unwrap(given)
        if not isinstance(function, FunctionType):
            return self.at(function)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        captured = {name: self.at(_content(cell)) for name, cell in cells}
        defaults = [self.at(function.__defaults__ or ()), self.at(function.__kwdefaults__ or {})]
        return [function.__qualname__, _code(function), captured, defaults, self.named(function)]

    def class_(self, kind: type) -> Any:
        """With the classes that it is made from, and what its methods use."""
        source = _source(kind)
        own = {name: _plain(value) for name, value in vars(kind).items()}
        methods = {name: value for name, value in own.items() if isinstance(value, FunctionType)}
        if source is None:
            bodies = {name: _bytecode(method.__code__) for name, method in methods.items()}
        else:
            bodies = {}
        values = {
            name: self.at(value)
            for name, value in own.items()
            if isinstance(value, DATA) and not name.startswith("__")
        }
        named: dict[str, Any] = {}
        for method in methods.values():
            named |= self.named(method)
        return [
            kind.__qualname__,
            source or bodies,
            [self.at(base) for base in kind.__bases__],
            values,
            named,
        ]

    def named(self, function: FunctionType) -> dict[str, Any]:
        """Globals that it uses; functions and classes are looked into if they are written in the
        same module."""
        found: dict[str, Any] = {}
        for name in sorted(_names(function.__code__)):
            value = function.__globals__.get(name)
            if name not in function.__globals__ or isinstance(value, ModuleType):
                continue
            if isinstance(value, (FunctionType, type)):
                if value.__module__ == function.__module__:
                    found[name] = self.code(value)
                else:
                    found[name] = _name(value)
            elif isinstance(value, DATA) or is_dataclass(value) or not _of_a_library(type(value)):
                found[name] = self.at(value)
            else:
                found[name] = _name(value if hasattr(value, "__qualname__") else type(value))
        return found


# --- pieces ---------------------------------------------------------------------------------------


def _simple(thing: Any) -> Any:
    thing = thing.item() if isinstance(thing, np.generic) else thing
    if isinstance(thing, (str, bool, int, type(None))):
        return thing
    return repr(thing)


def _array(thing: Tensor | np.ndarray) -> Any:
    if isinstance(thing, np.ndarray):
        return [
            "array",
            str(thing.dtype),
            list(thing.shape),
            hashlib.sha256(thing.tobytes()).hexdigest(),
        ]
    return ["tensor", str(thing.dtype), list(thing.shape), None if thing.is_meta else _bytes(thing)]


def _bytes(tensor: Tensor) -> str:
    plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(plain.numpy().tobytes()).hexdigest()


def _fields(thing: Any) -> dict[str, Any]:
    slots = [
        name for kind in type(thing).__mro__ for name in _several(vars(kind).get("__slots__", ()))
    ]
    held = {
        name: getattr(thing, name) for name in slots if name != "__dict__" and hasattr(thing, name)
    }
    return held | getattr(thing, "__dict__", {})


def _several(names: Any) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    return tuple(names)


def _name(thing: Any) -> Any:
    return [
        getattr(thing, "__module__", None),
        getattr(thing, "__qualname__", getattr(thing, "__name__", "")),
    ]


def _of_a_library(thing: Any) -> bool:
    """Python's own, installed, or this one: whoever changes it knows."""
    module = getattr(thing, "__module__", None) or "builtins"
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names or root in ("builtins", "orderone"):
        return True
    place = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" in place or "dist-packages" in place


def _plain(attribute: Any) -> Any:
    """The function in a property, a static or a class method."""
    if isinstance(attribute, property):
        inner = attribute.fget
    else:
        inner = getattr(attribute, "__func__", attribute)
    if isinstance(inner, FunctionType):
        return inspect.unwrap(inner)
    return inner


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def _code(function: FunctionType) -> str:
    source = None if function.__name__ == "<lambda>" else _source(function)
    if source is None:
        return _bytecode(function.__code__)
    return source


def _source(thing: Any) -> str | None:
    try:
        text = textwrap.dedent(inspect.getsource(thing))
        return hashlib.sha256(ast.dump(ast.parse(text)).encode()).hexdigest()
    except (OSError, TypeError, SyntaxError):  # no file, or a piece that is no statement of its own
        return None


def _bytecode(code: CodeType) -> str:
    parts = [code.co_code.hex(), *map(_constant, code.co_consts), *code.co_names, *code.co_varnames]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _constant(constant: Any) -> str:
    """Sets sorted: their order is another one in every process."""
    if isinstance(constant, CodeType):
        return _bytecode(constant)
    if isinstance(constant, (tuple, frozenset)):
        inner = [_constant(x) for x in constant]
        return (
            f"{type(constant).__name__}"
            f" {sorted(inner) if isinstance(constant, frozenset) else inner}"
        )
    return repr(constant)
