"""Activation functions that forward code calls, such as F.relu(x) or x.tanh(): read, not run.

The bytecode of the forward function of each module of users is followed into its methods and the
functions that it calls, outside of torch. A name is resolved as Python would resolve it: globals,
enclosing functions, attributes of self. A method of an unknown object counts if tensors have it and
no module of the model has this name.
"""

import dis
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from inspect import getattr_static
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from orderone.nn.activation_sites import FUNCTIONS, is_one_of

UNKNOWN: Any = object()
DEEPEST = 5  # functions that call functions
# Instructions between a name and its attribute that leave the value as it is
SILENT = frozenset(["PUSH_NULL", "PRECALL", "CACHE", "NOP", "EXTENDED_ARG", "SWAP", "POP_TOP"])
IMPORTS = ("IMPORT_NAME", "IMPORT_FROM")
SCRIPTED = re.compile(r"aten::(\w+)")


def functions_in_forward(
    model: nn.Module, known: Collection[str], kept: Collection[str]
) -> dict[str, list[str]]:
    """Return the activation functions that the code of modules calls, by names of modules.

    Names of modules and functions in `kept` are passed over, and those in `known` with all that is
    inside of them.
    """
    modules = dict(model.named_modules())
    names = frozenset(name.rpartition(".")[2] for name in modules)
    calls: dict[str, list[str]] = {}
    for name, module in modules.items():
        if name in kept or is_inside(name, known):
            continue
        scan = _Scan(module, names, frozenset([*known, *kept]), f"{name}." if name else "")
        scan.run()
        if scan.found:
            calls[name] = list(scan.found)
    return calls


def is_inside(name: str, known: Collection[str]) -> bool:
    """Return whether `name`, or a module that contains it, is known. The model itself never is."""
    parts = name.split(".")
    return any(".".join(parts[:number]) in known for number in range(1, len(parts) + 1))


def _inside(value: object) -> Iterator[object]:
    """Yield the functions of a container."""
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value


def _name(step: dis.Instruction) -> str:
    """Return the name in an instruction; of two variables (Python 3.13) the last one is on top."""
    if "_FAST" in step.opname and isinstance(step.argval, tuple):
        return str(step.argval[-1])
    return str(step.argval)


def _imported(value: Any, instruction: str, name: str) -> Any:
    """Return the module, or its attribute, that an instruction imports."""
    if instruction == "IMPORT_NAME":
        return sys.modules.get(name, UNKNOWN)
    return getattr(value, name, value)


def _captured(code: CodeType, owner: object) -> dict[str, object]:
    """Return the module under the name `self` of a method, for functions inside the method."""
    if owner is None or not code.co_argcount:
        return {}
    return {code.co_varnames[0]: owner}


@dataclass
class _Scan:
    module: nn.Module
    names: frozenset[str]  # of modules
    known: frozenset[str]
    prefix: str
    found: dict[str, None] = field(default_factory=dict)  # in order
    visited: set[tuple[CodeType, int]] = field(default_factory=set)

    def run(self) -> None:
        """Scan the forward code of the module, and the containers among its attributes."""
        self.follow(vars(self.module).get("forward", type(self.module).forward), self.module)
        for attribute, value in vars(self.module).items():
            if attribute.startswith("_") or self.prefix + attribute in self.known:
                continue
            for each in _inside(value):
                self.consider(each)

    def follow(self, function: object, owner: object, depth: int = 0) -> None:
        """Scan a function whose first argument is `owner`, or a function without one (None)."""
        if isinstance(function, MethodType):
            owner = function.__self__
            function = function.__func__
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.follow(wrapped, owner, depth)
        if not isinstance(function, FunctionType) or depth > DEEPEST:
            return
        if (function.__module__ or "").partition(".")[0] == "torch":
            return
        scope = dict(function.__globals__)
        for variable, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                scope[variable] = cell.cell_contents
            except ValueError:  # not yet assigned
                scope[variable] = UNKNOWN
        self._code(function.__code__, scope, owner, depth)

    def _code(self, code: CodeType, scope: dict[str, Any], owner: object, depth: int) -> None:
        key = (code, id(owner))
        if key in self.visited:
            return
        self.visited.add(key)
        local: dict[str, Any] = dict.fromkeys(code.co_varnames, UNKNOWN)
        if owner is not None and code.co_argcount:
            local[code.co_varnames[0]] = owner
        value = UNKNOWN
        for step in dis.get_instructions(code):
            name = _name(step)
            if step.opname in SILENT:
                continue
            if step.opname in IMPORTS:
                value = _imported(value, step.opname, name)
            elif step.opname.startswith("STORE_FAST"):
                if isinstance(step.argval, tuple):
                    first = step.argval[0]
                else:
                    first = name
                local[first] = value if isinstance(value, ModuleType) else UNKNOWN
                value = local.get(name, UNKNOWN)  # STORE_FAST_LOAD_FAST
            elif step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")):
                value = self._attribute(value, name, depth)
            elif step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")):
                value = local.get(name, scope.get(name, UNKNOWN))
                self.consider(value, depth)
                if name == "super":
                    self._parents(code, owner, depth)
            else:
                value = UNKNOWN
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                self._code(inner, {**scope, **_captured(code, owner)}, None, depth)

    def _parents(self, code: CodeType, owner: object, depth: int) -> None:
        """Follow the methods of parent classes whose names are in code that calls super()."""
        for name in code.co_names:
            for parent in type(owner).__mro__[1:]:
                function = vars(parent).get(name)
                if isinstance(function, FunctionType) and function.__code__ is not code:
                    self.follow(function, owner, depth + 1)

    def _attribute(self, value: Any, name: str, depth: int) -> Any:
        if value is UNKNOWN or isinstance(value, Tensor):
            if name in FUNCTIONS and hasattr(Tensor, name) and name not in self.names:
                self.found[name] = None
            return UNKNOWN
        if isinstance(value, nn.Module):
            return self._of_module(value, name, depth)
        if not isinstance(value, ModuleType | type):
            return UNKNOWN
        try:
            found = getattr(value, name, UNKNOWN)
        except Exception:  # lazy packages import on access
            return UNKNOWN
        self.consider(found, depth)
        return found

    def _of_module(self, module: nn.Module, name: str, depth: int) -> Any:
        """Return an attribute of a module; functions that it holds are replaced or kept."""
        if name in dict(module.named_children()):
            return module.get_submodule(name)
        found = vars(module).get(name, UNKNOWN)
        if found is UNKNOWN:
            found = getattr_static(type(module), name, UNKNOWN)
            if isinstance(found, staticmethod):
                self.follow(found.__func__, None, depth + 1)
            elif isinstance(found, classmethod):
                self.follow(found.__func__, UNKNOWN, depth + 1)
            else:
                self.follow(found, module, depth + 1)
            if is_one_of(found, FUNCTIONS):
                self.consider(found, depth)
            return UNKNOWN
        if module is self.module and self.prefix + name in self.known:
            return UNKNOWN
        if isinstance(found, FunctionType | MethodType) and not is_one_of(found, FUNCTIONS):
            self.follow(found, None, depth + 1)
        if isinstance(found, Tensor):
            return found
        return UNKNOWN

    def consider(self, value: Any, depth: int = 0) -> None:
        """Note an activation function, or follow a function of users."""
        if is_one_of(value, FUNCTIONS):
            if isinstance(value, partial):
                function = value.func
            else:
                function = value
            self.found[function.__name__] = None
        elif isinstance(value, torch.jit.ScriptFunction):
            for name in SCRIPTED.findall(str(value.inlined_graph)):
                if name in FUNCTIONS:
                    self.found[name] = None
        elif isinstance(value, FunctionType | MethodType):
            self.follow(value, None, depth + 1)
