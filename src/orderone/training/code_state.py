"""State outside a model that its code can change: global variables, and attributes of classes.

Also what functions have captured, their default values and attributes, attributes of parameters,
and the environment. No checkpoint holds such state. Members of a stack change it once instead of
once each, and a second training starts with what the first one has left. Only code of users is
read: the classes of modules, the functions they use, the loss function, and the globals that these
name. Values are compared as text; large ones, such as data sets, are left out.
"""

import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orderone.training.fingerprint import is_library, names_in, plain_function
from orderone.training.stacked.inner_state import HOLDERS, LRU_CACHE
from orderone.training.stacked.value_text import (
    GENERATORS,
    SIMPLE,
    parts_of,
    text_of,
    user_attributes,
)

LARGEST = 1 << 16  # entries of a tensor or array
LONGEST = 1 << 10  # items of a container
MOST = 200  # functions and classes that are read


def global_texts(model: nn.Module, *code: object) -> dict[str, str]:
    """Return the state that the code of a model can change, by name, as text.

    `code` are other functions and callable objects of the user, such as the loss.
    """
    values = list(_Reader(model, *code).values())
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        for key, value in vars(tensor).items():
            if _can_change(value):
                values.append((name, key, value))
    texts = {"os.environ": [str(dict(os.environ))]}
    for home, name, value in values:
        try:
            text = text_of(value)
        except Exception:  # objects of the user may raise anything
            continue
        # functions of several modules may have the same name, and capture different values
        texts.setdefault(f"{home}.{name}", []).append(text)
    return {name: ", ".join(of_name) for name, of_name in texts.items()}


@contextmanager
def fresh_caches(model: nn.Module, loss: object = None) -> Iterator[None]:
    """Let the code of a model begin with empty caches (functools.lru_cache), as a new process does.

    A cache may hold numbers that were drawn when it was filled. Caches that only other code uses,
    such as that of the data, are left alone.
    """
    caches = list(_Reader(model, loss).caches())
    for variables, name, cache in caches:
        variables[name] = lru_cache(**cache.cache_parameters())(cache.__wrapped__)
    try:
        yield
    finally:
        for variables, name, cache in caches:
            variables[name] = cache


class _Reader:
    """Follows code from function to function, and finds the global values that it names."""

    def __init__(self, model: nn.Module, *code: object) -> None:
        self.code: dict[int, FunctionType | type] = {}  # by identity
        self.objects: list[object] = []  # of the user, whose attributes their code can change
        for module in model.modules():
            self.add(type(module))
            for _, value in user_attributes(module):
                if isinstance(value, (FunctionType, MethodType)):
                    self.add(value)
        for thing in code:
            self.add_code(thing)

    def add_code(self, thing: object) -> None:
        """Add a function, a function with arguments, a class, or an object with methods."""
        if isinstance(thing, partial):
            self.add_code(thing.func)
        elif isinstance(thing, (FunctionType, LRU_CACHE, type)):
            self.add(thing)
        elif isinstance(thing, MethodType):
            self.add(thing)
            self.add_code(thing.__self__)
        elif thing is not None:
            self.add(type(thing))
            if not is_library(type(thing).__module__) and not isinstance(thing, nn.Module):
                self.objects.append(thing)

    def add(self, thing: object) -> None:
        if isinstance(thing, MethodType):
            thing = thing.__func__
        if isinstance(thing, LRU_CACHE):
            thing = thing.__wrapped__
        if isinstance(thing, FunctionType):
            self.add_wrapped(thing)
        thing = plain_function(thing)
        if not isinstance(thing, (FunctionType, type)) or id(thing) in self.code:
            return
        if _is_of_library(thing) or len(self.code) >= MOST:
            return
        self.code[id(thing)] = thing
        if isinstance(thing, type):
            for base in [*thing.__mro__[1:], type(thing)]:
                self.add(base)
            for value in vars(thing).values():
                if isinstance(plain_function(value), FunctionType):
                    self.add(value)
            return
        for value in [*self._globals(thing).values(), *dict(parts_of(thing)).values()]:
            self.add(value)
        for module in self._modules(thing):
            for name in names_in(thing.__code__):
                self.add(vars(module).get(name))

    def add_wrapped(self, function: FunctionType) -> None:
        """Add the function that a decorator has replaced; the decorator may count its calls."""
        inner = vars(function).get("__wrapped__")
        if inner is None or id(function) in self.code or len(self.code) >= MOST:
            return
        self.code[id(function)] = function
        for value in [inner, *dict(parts_of(function)).values()]:
            self.add(value)

    def values(self) -> Iterator[tuple[str, str, object]]:
        """Yield module or class, name, and value."""
        for thing in self.objects:
            yield from _changeable(type(thing).__qualname__, getattr(thing, "__dict__", {}))
        for thing in self.code.values():
            if isinstance(thing, type):
                held = {name: x for name, x in vars(thing).items() if not name.startswith("__")}
                yield from _changeable(thing.__qualname__, held)
            elif is_library(str(thing.__globals__.get("__name__"))):
                # made by a decorator of a library, whose variables are not the user's
                yield from _changeable(thing.__qualname__, vars(thing))
            else:
                yield from _changeable(str(thing.__module__), self._globals(thing))
                yield from _changeable(thing.__qualname__, dict(parts_of(thing)))
                for module in self._modules(thing):
                    named = {name: vars(module).get(name) for name in names_in(thing.__code__)}
                    yield from _changeable(module.__name__, named)

    def _modules(self, function: FunctionType) -> Iterator[ModuleType]:
        """Yield the modules of the user that a function names."""
        for name in names_in(function.__code__):
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType) and not is_library(value.__name__):
                yield value

    def caches(self) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """Yield the global variables of a module, and name and value of a cache among them."""
        for thing in self.code.values():
            if isinstance(thing, FunctionType):
                for name, value in self._globals(thing).items():
                    if isinstance(value, LRU_CACHE):
                        yield thing.__globals__, name, value

    def _globals(self, function: FunctionType) -> Mapping[str, object]:
        found: dict[str, object] = {}
        if is_library(str(function.__globals__.get("__name__"))):
            return found
        for name in names_in(function.__code__):
            value = function.__globals__.get(name)
            if value is not None and not isinstance(value, ModuleType):
                found[name] = value
        return found


def _changeable(home: str, held: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    for name, value in held.items():
        if value is not None and _can_change(value):
            yield home, name, value


def _is_of_library(code: FunctionType | type) -> bool:
    """Return whether code belongs to Python or a package; functions of `exec` name no module."""
    if isinstance(code, FunctionType) and code.__module__ in (None, "builtins"):
        return False
    return is_library(code.__module__)


def _can_change(value: object) -> bool:
    """Return whether this is a value of moderate size that code may replace or write to."""
    if isinstance(value, Tensor):
        return value.numel() <= LARGEST and value.device.type == "cpu"
    if isinstance(value, np.ndarray):
        return value.size <= LARGEST
    if isinstance(value, (Mapping, list, tuple, set, frozenset, deque)):
        return len(value) <= LONGEST and not _holds_models(value)
    if isinstance(value, (*SIMPLE, torch.Generator, *GENERATORS, *HOLDERS)):
        return True
    return not callable(value) and not is_library(type(value).__module__)


def _holds_models(values: object) -> bool:
    """Return whether a container has modules, which have their own state."""
    if isinstance(values, Mapping):
        inside = values.values()
    else:
        inside = values
    return any(isinstance(x, nn.Module) for x in inside)  # type: ignore[union-attr]
