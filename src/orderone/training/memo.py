"""Memos: dicts in which code keeps what it has computed, so that it need not compute it again.

    memo = {}                         self.known = {}
    def slow(x):                      def slow(self, x):
        if x not in memo:                 if x not in self.known:
            memo[x] = ...                     self.known[x] = ...
        return memo[x]                    return self.known[x]

What a memo holds depends on what ran before, and its keys may be different in every process. The
dict is a memo if it is empty where it is defined, and one function both looks up a key in it and
stores a value that it has computed under the same key. A constant key is a setting, and a value
that is an argument is a registration: such dicts are not memos.
"""

import ast
import inspect
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import FunctionType

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
EMPTY = ("{}", "dict()", "field(default_factory=dict)", "dataclasses.field(default_factory=dict)")


def memo_names(function: FunctionType) -> frozenset[str]:
    """Return the names of global, captured and default dicts that a function uses as memos."""
    path = _path_to(function)
    if not path or not isinstance(path[-1], FunctionNode):
        return frozenset()
    used = {name for name in _filled(path[-1]) if "." not in name}
    empty = _empty_defaults(path[-1])
    for node in path[:-1]:
        if not isinstance(node, ast.ClassDef):
            empty |= _empty_names(node)
    return frozenset(used & empty)


def memo_attributes(kind: type) -> frozenset[str]:
    """Return the attributes that the methods of a class use as memos."""
    tree = _class_tree(kind)
    if tree is None:
        return frozenset()
    methods = [node for node in tree.body if isinstance(node, FunctionNode)]
    empty = _empty_names(tree)
    filled: set[str] = set()
    for method in methods:
        if not method.args.args:
            continue
        prefix = f"{method.args.args[0].arg}."
        if method.name == "__init__":
            empty |= {name.removeprefix(prefix) for name in _empty_names(method)}
        for name in _filled(method):
            if name.startswith(prefix):
                filled.add(name.removeprefix(prefix))
    return frozenset(filled & empty)


def _filled(function: FunctionNode) -> set[str]:
    """Return the dicts in which a function looks up a key and stores what it has computed."""
    arguments = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    looked_up: set[tuple[str, str]] = set()
    stored: set[tuple[str, str]] = set()
    for node in ast.walk(function):
        match node:
            case ast.Subscript(value=container, slice=key, ctx=ast.Load()):
                looked_up.add((ast.unparse(container), ast.unparse(key)))
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[container]):
                looked_up.add((ast.unparse(container), ast.unparse(key)))
            case ast.Call(func=ast.Attribute(value=container, attr="get"), args=[key, *_]):
                looked_up.add((ast.unparse(container), ast.unparse(key)))
            case ast.Call(func=ast.Attribute(value=container, attr="setdefault"), args=[key, made]):
                if _is_computed(key, made, arguments):
                    entry = (ast.unparse(container), ast.unparse(key))
                    looked_up.add(entry)
                    stored.add(entry)
            case ast.Assign(targets=targets, value=made):
                for target in targets:
                    if isinstance(target, ast.Subscript) and _is_computed(
                        target.slice, made, arguments
                    ):
                        stored.add((ast.unparse(target.value), ast.unparse(target.slice)))
    return {container for container, _ in stored & looked_up}


def _is_computed(key: ast.expr, value: ast.expr, arguments: set[str]) -> bool:
    if isinstance(key, ast.Constant) or isinstance(value, ast.Constant):
        return False
    return not (isinstance(value, ast.Name) and value.id in arguments)


def _empty_names(scope: ast.AST) -> set[str]:
    """Return the names to which a module, class or function assigns an empty dict, and only that.

    Functions inside the scope are left out.
    """
    empty: set[str] = set()
    other: set[str] = set()
    for node in _statements(scope):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        else:
            continue
        is_empty = node.value is not None and ast.unparse(node.value) in EMPTY
        for target in targets:
            if isinstance(target, ast.Subscript):  # an entry that is there from the start
                other.add(ast.unparse(target.value))
            elif is_empty:
                empty.add(ast.unparse(target))
            else:
                other.add(ast.unparse(target))
    return empty - other


def _empty_defaults(function: FunctionNode) -> set[str]:
    arguments = [*function.args.posonlyargs, *function.args.args]
    defaults = function.args.defaults
    pairs = [*zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)]
    for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
        if default is not None:
            pairs.append((argument, default))
    return {argument.arg for argument, default in pairs if ast.unparse(default) in EMPTY}


def _statements(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (*FunctionNode.__args__, ast.ClassDef, ast.Lambda)):
            continue
        yield child
        yield from _statements(child)


# --- syntax trees ---------------------------------------------------------------------------------


def _path_to(function: FunctionType) -> list[ast.AST]:
    """Return the nodes from the module down to the definition of a function; [] if unknown."""
    code = function.__code__
    tree = _tree(tuple(linecache.getlines(code.co_filename)))
    if tree is None:
        return []
    return _search(tree, [tree], code.co_name, code.co_firstlineno)


def _search(node: ast.AST, path: list[ast.AST], name: str, line: int) -> list[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FunctionNode) and child.name == name and _first_line(child) == line:
            return [*path, child]
        inner = path
        if isinstance(child, (*FunctionNode.__args__, ast.ClassDef)):
            inner = [*path, child]
        found = _search(child, inner, name, line)
        if found:
            return found
    return []


def _first_line(node: FunctionNode) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _class_tree(kind: type) -> ast.ClassDef | None:
    try:
        tree = _tree((inspect.cleandoc("\n" + inspect.getsource(kind)),))
    except (OSError, TypeError):  # no file, or a class of C
        return None
    if tree is None or not tree.body or not isinstance(tree.body[0], ast.ClassDef):
        return None
    return tree.body[0]


@lru_cache(maxsize=64)
def _tree(lines: tuple[str, ...]) -> ast.Module | None:
    try:
        return ast.parse("".join(lines))
    except SyntaxError:  # not a complete statement
        return None
