"""The run-time type checker of the test suite: beartype, except for values that users pass.

Functions validate the values that users pass and raise errors that say what to do; a type checker
in front of them would raise its own. `UserInput` marks the types of such values.

`install("orderone")` checks every function and every dataclass of a package that is imported
afterwards. The hook rewrites the sources, as that of jaxtyping does, but its wrappers cost a tenth.
"""

import ast
import importlib._bootstrap_external as machinery  # pyright: ignore[reportMissingImports]
import random
import sys
from collections.abc import Sequence
from functools import update_wrapper
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Annotated, Any, ForwardRef, Literal, get_args, get_origin, get_type_hints
from unittest.mock import patch

# beartype draws from Python's generator, which models under test may use
with patch.object(random, "getrandbits", random.Random(0).getrandbits):
    from beartype import beartype

CHECKER = "__type_checker__"  # the name of this module within the modules that it checks
CALLED = "__beartype_func"  # the parameter of beartype's wrappers that has the function to call
UNCHECKED = "no_type_check"  # decorator of typing: for functions that a compiler reads
VERSION = 2  # of what is written into sources: older bytecode is not read


def checked(function: Any) -> Any:
    """Check calls of `function` with beartype; accept anything where users pass a value."""
    if isinstance(function, classmethod | staticmethod):
        return type(function)(checked(function.__func__))
    if "<locals>" in function.__qualname__:
        return _checked_again(function)
    return _wrapped(function)


def _wrapped(function: Any) -> Any:
    hints = getattr(function, "__annotations__", {})
    accepted = {name: _accepted(hint, function.__globals__) for name, hint in hints.items()}
    if accepted == hints:
        return beartype(function)
    function.__annotations__ = accepted
    wrapper = beartype(function)
    function.__annotations__ = wrapper.__annotations__ = hints  # the command line reads them
    return wrapper


_TEMPLATES: dict[CodeType, tuple[dict[str, Any], FunctionType | None]] = {}  # hints, wrapper


def _checked_again(function: Any) -> Any:
    """Check a function that is defined anew at every call of the one around it.

    beartype needs 2 ms for a wrapper, which was more than half of the time of a coordinate check.
    So the wrapper is made once for each definition, and calls the present function.
    """
    hints = function.__annotations__
    if function.__code__ not in _TEMPLATES or _TEMPLATES[function.__code__][0] != hints:
        copied = _without_values(function)
        wrapper = _wrapped(copied)
        _TEMPLATES[function.__code__] = (hints, None if wrapper is copied else wrapper)
    wrapper = _TEMPLATES[function.__code__][1]
    if wrapper is None:
        return function  # there is nothing to check
    called = wrapper.__kwdefaults__ or {}
    if CALLED not in called:  # another version of beartype
        return _wrapped(function)
    again = FunctionType(wrapper.__code__, wrapper.__globals__, function.__name__)
    again.__kwdefaults__ = called | {CALLED: function}
    return update_wrapper(again, function)


def _without_values(function: Any) -> Any:
    """Copy a function without the variables around it, which a template would keep alive."""
    cells = tuple(CellType() for _ in function.__code__.co_freevars)
    copied = FunctionType(function.__code__, function.__globals__, closure=cells)
    copied.__defaults__ = function.__defaults__
    copied.__kwdefaults__ = function.__kwdefaults__
    for name in ("__module__", "__qualname__", "__annotations__"):
        setattr(copied, name, getattr(function, name))
    return copied


def checked_class(cls: Any) -> Any:
    """Check the fields that a dataclass is made of."""
    if "__dataclass_fields__" in vars(cls) and "__init__" in vars(cls):
        cls.__init__ = checked(cls.__init__)
    return cls


def _accepted(hint: Any, names: dict[str, Any]) -> Any:
    """Return the type to check: anything for values of users and for names not yet defined."""
    if _has_forward_reference(hint):
        holder = type("Holder", (), {"__annotations__": {"value": hint}})
        try:
            hint = get_type_hints(holder, names, include_extras=True)["value"]
        except NameError:
            return Any
    return Any if _from_a_user(hint) else hint


def _has_forward_reference(hint: Any) -> bool:
    if isinstance(hint, str | ForwardRef):
        return True
    return get_origin(hint) is not Literal and any(map(_has_forward_reference, get_args(hint)))


def _from_a_user(hint: Any) -> bool:
    if get_origin(hint) is Annotated:
        # by name: orderone itself is imported through this checker
        marks = [getattr(mark, "__name__", "") for mark in get_args(hint)[1:]]
        if "UserInput" in marks:
            return True
    return any(_from_a_user(part) for part in get_args(hint) if not isinstance(part, str))


# --- the hook -------------------------------------------------------------------------------------


def install(package: str) -> None:
    """Check the modules of `package` that are imported from now on."""
    assert package not in sys.modules, f"{package} was imported before its type checker"
    sys.meta_path.insert(0, _Finder(package))


class _Finder(MetaPathFinder):
    def __init__(self, package: str):
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.split(".")[0] != self.package:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        tree = _Decorate().visit(ast.parse(data))
        ast.fix_missing_locations(tree)
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)

    def get_code(self, fullname: str) -> Any:
        with patch.object(machinery, "cache_from_source", _bytecode):
            return super().get_code(fullname)


_plain = machinery.cache_from_source


def _bytecode(path: str, *_options: Any, **_named: Any) -> str:
    """Keep the bytecode of checked modules beside that of the plain ones."""
    return _plain(path, optimization=f"checked{VERSION}")


class _Decorate(ast.NodeTransformer):
    def visit_Module(self, node: ast.Module) -> ast.Module:
        self.generic_visit(node)
        first = 0
        for statement in node.body:
            docstring = isinstance(statement, ast.Expr) and isinstance(
                statement.value, ast.Constant
            )
            future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            if not (docstring or future):
                break
            first += 1
        here = ast.alias(__name__, CHECKER)
        node.body.insert(first, ast.Import([here]))
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Decorate a class last, when `@dataclass` has made its `__init__`."""
        self.generic_visit(node)
        node.decorator_list.insert(0, _decorator("checked_class", node))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Decorate a function first: other decorators may hide its annotations."""
        self.generic_visit(node)
        if not any(isinstance(x, ast.Name) and x.id == UNCHECKED for x in node.decorator_list):
            node.decorator_list.append(_decorator("checked", node))
        return node


def _decorator(name: str, node: ast.ClassDef | ast.FunctionDef) -> ast.expr:
    module = ast.Name(CHECKER, ast.Load())
    return ast.copy_location(ast.Attribute(module, name, ast.Load()), node)
