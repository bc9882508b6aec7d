"""Whether the forward pass of a model is plain: the same operations in every step, by its code.

A list of traced operations repeats what the code did when it was traced. That is the same training
only if nothing but tensors changes from step to step. Code of torch and of packages is trusted
here; the last step of a training is compared anyway. Code of users is plain if

* it stores nothing outside its own variables: no attribute, no global or captured variable;
* what it names is torch, math, a function of them, a number, a string, a module, or plain code;
* the attributes of its modules are such values too: no counter or queue can be among them.

Everything else, such as numpy, `random`, time, files, lists and objects of users, is not plain.
Such models train as usual.
"""

import builtins
import dis
from collections.abc import Mapping
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

import torch
from torch import nn

from orderone.training.fingerprint import is_library, names_in, plain_function
from orderone.training.stacked.alike import hooks_of
from orderone.training.stacked.value_text import SIMPLE, user_attributes

TRUSTED = ("torch", "math", "operator", "typing", "einops", "orderone")
STORES = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME")
FUNCTIONS = frozenset(
    {
        *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "int", "len"),
        *("isinstance", "list", "map", "max", "min", "pow", "range", "reversed", "round"),
        *("slice", "sorted", "str", "sum", "super", "tuple", "zip"),
    }
)
TOO_DEEP = 4  # levels of tuples and records
NOT_RUN = ("__init__", "__repr__", "__setstate__", "__getstate__")


def is_plain(model: nn.Module, loss: object = None) -> bool:
    """Return whether the passes of a model and a loss are the same operations in every step."""
    return _Reader(model).is_plain(model, loss)


class _Reader:
    """Reads code and values; `modules` and `kinds` are those of the model, by identity."""

    def __init__(self, model: nn.Module) -> None:
        self.modules: set[int] = {id(module) for module in model.modules()}
        self.kinds: set[type] = {type(module) for module in model.modules()}
        self.checked: set[int] = set()

    def is_plain(self, model: nn.Module, loss: object) -> bool:
        if isinstance(loss, nn.Module):
            if not is_library(type(loss).__module__) or any(True for _ in loss.buffers()):
                return False
        elif not self.value(loss):
            return False
        return all(self.module(module) for module in model.modules())

    def module(self, module: nn.Module) -> bool:
        """Return whether a module is plain, without those inside it."""
        if not all(_is_of_library(hook) for _, hook in hooks_of(module)):
            return False
        by_user = not is_library(type(module).__module__)
        for _, value in user_attributes(module):
            if (by_user or callable(value)) and not self.value(value):
                return False
        if not by_user:
            return True
        functions, others = _of_classes(type(module))
        return all(map(self.code, _called(functions))) and all(map(self.value, others))

    def code(self, function: FunctionType) -> bool:
        """Return whether a function is plain, with everything that it names."""
        if id(function) in self.checked:
            return True
        self.checked.add(id(function))
        code = function.__code__
        if function.__dict__ or _stores(code, frozenset(code.co_freevars)):
            return False
        values = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name != "__class__":
                values.append(cell.cell_contents)
        for name in _globals_in(code):
            if name in function.__globals__:
                values.append(function.__globals__[name])
            elif not _is_plain_builtin(name):
                return False
        return all(self.value(value) for value in values)

    def value(self, value: object, depth: int = TOO_DEEP) -> bool:
        """Return whether code can read or call the value without a change from step to step."""
        if isinstance(value, (*SIMPLE, torch.Size, slice, range)) or value is Ellipsis:
            return True
        if isinstance(value, nn.Module):
            return id(value) in self.modules
        if isinstance(value, (tuple, frozenset)):
            return depth > 0 and all(self.value(x, depth - 1) for x in value)
        if isinstance(value, ModuleType):
            return value.__name__.partition(".")[0] in TRUSTED
        if isinstance(value, partial):
            parts = (value.func, *value.args, *value.keywords.values())
            return depth > 0 and all(self.value(x, depth - 1) for x in parts)
        if isinstance(value, MethodType):
            return id(value.__self__) in self.modules and self.value(value.__func__, depth)
        if isinstance(value, FunctionType) and not is_library(str(value.__module__)):
            return self.code(value)
        if isinstance(value, type):
            return value in self.kinds or _is_of_library(value)
        return isinstance(value, (FunctionType, BuiltinFunctionType)) and _is_of_library(value)


def _is_plain_builtin(name: str) -> bool:
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return True
    return name in FUNCTIONS


def _of_classes(kind: type) -> tuple[dict[str, FunctionType], list[object]]:
    """Return the functions and the other attributes of classes of the user."""
    own = [base for base in kind.__mro__ if not is_library(base.__module__)]
    functions: dict[str, FunctionType] = {}
    others: list[object] = []
    for base in reversed(own):
        for name, value in vars(base).items():
            inner = plain_function(value)
            if isinstance(inner, FunctionType):
                functions[name] = inner
            elif not name.startswith("__"):
                others.append(inner)
    return functions, others


def _called(functions: Mapping[str, FunctionType]) -> list[FunctionType]:
    """Return the functions of a class that a forward pass may call."""
    wanted = [name for name in functions if name.startswith("__") and name not in NOT_RUN]
    wanted.append("forward")
    seen: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in functions and name not in seen:
            seen.add(name)
            wanted += names_in(functions[name].__code__)
    return [functions[name] for name in seen]


def _stores(code: CodeType, captured: frozenset[str]) -> bool:
    """Return whether code stores outside its own variables, or is a generator."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in STORES:
            return True
        if instruction.opname == "STORE_DEREF" and instruction.argval in captured:
            return True
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return any(_stores(one, captured) for one in inner)


def _globals_in(code: CodeType) -> set[str]:
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _globals_in(constant)
    return names


def _is_of_library(thing: object) -> bool:
    """Return whether a function, a class or an object comes from a package that is trusted."""
    home = getattr(thing, "__module__", None)
    if home is None:  # functions of torch that are written in C++
        home = type(getattr(thing, "__self__", thing)).__module__
    return str(home).partition(".")[0] in TRUSTED
