"""Identity of a function: its name, its code, and the values it has captured.

A function that was edited has another identity. The code is the syntax tree of the source, which
comments and spaces do not change. For a lambda, or where there is no source, it is the bytecode.
Functions, classes and values of the same file that the function uses are included, and so is the
class of a callable object. Functions of libraries are identified by their names. Objects that hold
no readable data are identified by their types.

The identity is the same in every process: no address and no hash value enters it, sets are sorted,
and the content of memos is left out (`memo.py`). The order of a dict counts, because code may
iterate over it.
"""

import argparse
import ast
import copyreg
import functools
import hashlib
import inspect
import sys
import textwrap
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import PurePath
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from orderone.core.canonical import canonical
from orderone.training.memo import memo_attributes, memo_names
from orderone.training.tensor_content import content_of

SIMPLE = (bool, int, float, str, bytes, type(None))
PRINTED = (
    torch.dtype,
    torch.device,
    PurePath,
    Enum,
    Fraction,
    Decimal,
    complex,
    np.dtype,
)  # identified by their text
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
    slice,
    set,
    frozenset,
    weakref.WeakSet,
    functools.partial,
    MethodType,
    SimpleNamespace,
    argparse.Namespace,
)
DEEP = 24  # levels of nested values that are described
MEMO = "memo"  # in place of the content of a memo
Json: TypeAlias = object  # texts, numbers, None, and lists and dicts of them


def identity(thing: object) -> Json:
    """Return JSON that differs where two things differ.

    A thing without readable content is identified by its type.
    """
    return _Describer().user_object(thing)


def identity_of_part(thing: object) -> Json:
    """Return the identity of a function or class; one of a library is identified by its name."""
    return _Describer().at(thing)


@dataclass
class _Describer:
    """Describes functions, classes and objects in full once, and by number after that.

    So they may refer to each other in circles.
    """

    # by id; the objects are referenced here, so that no new object gets the same id
    numbered: dict[int, object] = field(default_factory=dict)
    inside: list[int] = field(default_factory=list)  # ids of the values being described

    def user_object(self, thing: object) -> Json:
        """Describe what the user passed, including its code, in whichever module it is written."""
        if isinstance(thing, (FunctionType, type)):
            return self.code(thing)
        return self.at(thing)

    def at(self, thing: object) -> Json:
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

    def value(self, thing: object) -> Json:
        if isinstance(thing, functools.partial):
            return [
                "partial",
                self.user_object(thing.func),
                self.at(thing.args),
                self.at(thing.keywords),
            ]
        if isinstance(thing, MethodType):
            return ["method", self.user_object(thing.__func__), self.at(thing.__self__)]
        if isinstance(thing, CACHED):
            return ["cached", self.user_object(thing.__wrapped__)]
        if isinstance(thing, np.ndarray) and thing.dtype.hasobject:
            return ["array", str(thing.dtype), list(thing.shape), self.at(thing.ravel().tolist())]
        if isinstance(thing, (Tensor, np.ndarray)):
            return _array(thing)
        if isinstance(thing, nn.Module):
            return self.module(thing)
        if isinstance(thing, Mapping):
            pairs: list[Json] = []
            for key, value in thing.items():
                pairs.append([self.at(key), self.at(value)])
            return ["mapping", pairs]
        if isinstance(thing, (list, tuple, range)):
            return [self.at(value) for value in thing]
        if isinstance(thing, slice):
            return ["slice", self.at([thing.start, thing.stop, thing.step])]
        if isinstance(thing, (set, frozenset, weakref.WeakSet)):
            return self.set_(thing)
        if isinstance(thing, ModuleType) or (
            callable(thing) and hasattr(thing, "__qualname__")
        ):  # written in C
            return _name(thing)
        return self.instance(thing)

    def set_(self, elements: Iterable[object]) -> Json:
        """Describe a set whatever its order, which differs between processes.

        Every element is described with the numbers that were in use before the set.
        """
        described: list[Json] = []
        for element in elements:
            alone = _Describer(dict(self.numbered), list(self.inside))
            described.append(alone.at(element))
        return ["set", sorted(described, key=canonical)]

    def instance(self, thing: object) -> Json:
        if id(thing) in self.numbered:
            return self.again(thing)
        self.numbered[id(thing)] = thing
        kind = self.at(type(thing))
        fields = _fields(thing)
        if not fields:
            return [kind, self.state(thing)]
        computed = _computed_attributes(type(thing))
        described: dict[str, Json] = {}
        for name, value in sorted(fields.items()):
            if name in computed:
                described[name] = MEMO
            else:
                described[name] = self.at(value)
        return [kind, described]

    def state(self, thing: object) -> Json:
        """Describe an object without fields by what `pickle` would write: dates, patterns."""
        reduce = copyreg.dispatch_table.get(type(thing))
        try:
            if reduce is None:
                reduced = thing.__reduce_ex__(2)
            else:
                reduced = reduce(thing)
        except Exception:  # the object may raise anything, and holds nothing readable
            return {}
        if isinstance(reduced, str):
            return reduced
        arguments, *others = reduced[1:]
        parts: list[Json] = []
        for part in (arguments, *others):
            parts.append(self.at(list(part) if isinstance(part, Iterator) else part))
        return parts

    def again(self, thing: object) -> Json:
        return ["again", list(self.numbered).index(id(thing))]

    def module(self, module: nn.Module) -> Json:
        tensors: dict[str, Json] = {}
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            tensors[name] = self.at(tensor)
        parts: dict[str, Json] = {}
        for name, part in module.named_modules():
            parts[name] = [self.at(type(part)), self.settings(part)]
        return ["module", parts, tensors]

    def settings(self, module: nn.Module) -> Json:
        """Describe the public attributes of a module that are neither tensors nor modules."""
        settings: dict[str, Json] = {}
        computed = _computed_attributes(type(module))
        for name, value in vars(module).items():
            if name.startswith("_") or name in computed or isinstance(value, (Tensor, nn.Module)):
                continue
            settings[name] = self.at(value)
        return settings

    # --- code -------------------------------------------------------------------------------------

    def code(self, thing: FunctionType | type) -> Json:
        if id(thing) in self.numbered:
            return self.again(thing)
        self.numbered[id(thing)] = thing
        if isinstance(thing, type):
            return self.class_(thing)
        return self.function(thing)

    def function(self, wrapper: FunctionType) -> Json:
        function = inspect.unwrap(wrapper)
        if not isinstance(function, FunctionType):
            return self.at(function)
        described: list[Json] = [
            function.__qualname__,
            _code(function),
            self.captured(function),
            self.defaults(function),
            self.named(function),
        ]
        for decorated in _wrappers(wrapper):
            described.append([_code(decorated), self.captured(decorated), self.named(decorated)])
        return described

    def captured(self, function: FunctionType) -> dict[str, Json]:
        memos = memo_names(function)
        captured: dict[str, Json] = {}
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            if name in memos:
                captured[name] = MEMO
            else:
                captured[name] = self.at(_content(cell))
        return captured

    def defaults(self, function: FunctionType) -> Json:
        memos = memo_names(function)
        code = function.__code__
        positional = function.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(positional) : code.co_argcount]
        described: list[Json] = []
        for name, value in zip(names, positional, strict=True):
            described.append(MEMO if name in memos else self.at(value))
        keywords: dict[str, object] = {}
        for name, value in (function.__kwdefaults__ or {}).items():
            keywords[name] = MEMO if name in memos else value
        return [described, self.at(keywords)]

    def class_(self, kind: type) -> Json:
        """Describe a class, its base classes, and what its methods use."""
        source = _source(kind)
        attributes = {name: plain_function(value) for name, value in vars(kind).items()}
        memos = memo_attributes(kind)
        values: dict[str, Json] = {}
        for name, value in attributes.items():
            if isinstance(value, DATA) and not name.startswith("__"):
                values[name] = MEMO if name in memos else self.at(value)
        bodies: dict[str, str] = {}
        named: dict[str, Json] = {}
        for name, value in attributes.items():
            if not isinstance(value, FunctionType):
                continue
            if source is None:
                bodies[name] = _bytecode(value.__code__)
            named |= self.named(value)
        return [
            kind.__qualname__,
            source or bodies,
            [self.at(base) for base in kind.__bases__],
            values,
            named,
        ]

    def named(self, function: FunctionType) -> dict[str, Json]:
        """Describe the globals that a function uses.

        The code of functions and classes is included if they are written in the same module.
        """
        used: dict[str, Json] = {}
        memos = memo_names(function)
        for name in sorted(names_in(function.__code__)):
            value = function.__globals__.get(name)
            if name not in function.__globals__ or isinstance(value, ModuleType):
                continue
            if name in memos:
                used[name] = MEMO
            elif isinstance(value, (FunctionType, type)):
                if value.__module__ == function.__module__:
                    used[name] = self.code(value)
                else:
                    used[name] = _name(value)
            elif isinstance(value, DATA) or is_dataclass(value) or not _of_a_library(type(value)):
                used[name] = self.at(value)
            elif hasattr(value, "__qualname__"):
                used[name] = _name(value)
            elif not hasattr(value, "__dict__"):  # dates, patterns
                used[name] = self.at(value)
            else:
                used[name] = _name(type(value))
        return used


# --- pieces ---------------------------------------------------------------------------------------


def _simple(thing: object) -> Json:
    if isinstance(thing, np.generic):
        thing = thing.item()
    if isinstance(thing, (str, bool, int, type(None))):
        return thing
    return repr(thing)


def _array(thing: Tensor | np.ndarray) -> Json:
    content = None
    if isinstance(thing, np.ndarray):
        kind = "array"
        content = thing.tobytes()
    else:
        kind = "tensor"
        if not thing.is_meta:
            content = content_of(thing)
    digest = None
    if content is not None:
        digest = hashlib.sha256(content).hexdigest()
    return [kind, str(thing.dtype), list(thing.shape), digest]


def _fields(thing: object) -> dict[str, object]:
    fields: dict[str, object] = {}
    for kind in type(thing).__mro__:
        slots = vars(kind).get("__slots__", ())
        if isinstance(slots, str):
            slots = (slots,)
        for name in slots:
            if name != "__dict__" and hasattr(thing, name):
                fields[name] = getattr(thing, name)
    return fields | getattr(thing, "__dict__", {})


def _computed_attributes(kind: type) -> set[str]:
    """Return the attributes that hold what the methods of a class have computed."""
    names: set[str] = set()
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, functools.cached_property):
                names.add(name)
        if not _of_a_library(base):
            names |= memo_attributes(base)
    return names


def _name(thing: object) -> Json:
    return [
        getattr(thing, "__module__", None),
        getattr(thing, "__qualname__", getattr(thing, "__name__", "")),
    ]


def _of_a_library(thing: object) -> bool:
    """Return whether a thing belongs to Python, to an installed package or to orderone.

    Their code is left out: users know when they install another version.
    """
    return is_library(getattr(thing, "__module__", None) or "builtins")


def is_library(module: str) -> bool:
    """Return whether a module, by its name, belongs to Python, a package or orderone."""
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names or root in ("builtins", "orderone"):
        return True
    place = getattr(sys.modules.get(module), "__file__", None) or ""
    return "site-packages" in place or "dist-packages" in place


def plain_function(attribute: object) -> object:
    """Return the function in a property, a static or a class method."""
    if isinstance(attribute, property):
        inner = attribute.fget
    else:
        inner = getattr(attribute, "__func__", attribute)
    if isinstance(inner, FunctionType):
        return inspect.unwrap(inner)
    return inner


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _wrappers(function: object) -> Iterator[FunctionType]:
    """Yield the functions around the innermost one that decorators of the user have made.

    They have the name and module of the innermost one; their globals tell where they are written.
    """
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        if isinstance(function, FunctionType) and not is_library(
            str(function.__globals__.get("__name__"))
        ):
            yield function
        function = inner


def names_in(code: CodeType) -> set[str]:
    """Return the names that code uses, with those of functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


def _code(function: FunctionType) -> str:
    if function.__name__ == "<lambda>":
        return _bytecode(function.__code__)
    return _source(function) or _bytecode(function.__code__)


def _source(thing: FunctionType | type) -> str | None:
    try:
        text = textwrap.dedent(inspect.getsource(thing))
        return hashlib.sha256(ast.dump(ast.parse(text)).encode()).hexdigest()
    except (OSError, TypeError, SyntaxError):  # no file, or not a complete statement
        return None


def _bytecode(code: CodeType) -> str:
    parts = [code.co_code.hex(), *map(_constant, code.co_consts), *code.co_names, *code.co_varnames]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _constant(constant: object) -> str:
    """Return the text of a constant, sets sorted: their order differs between processes."""
    if isinstance(constant, CodeType):
        return _bytecode(constant)
    if isinstance(constant, (tuple, frozenset)):
        inner = [_constant(x) for x in constant]
        if isinstance(constant, frozenset):
            inner.sort()
        return f"{type(constant).__name__} {inner}"
    return repr(constant)
