"""Docstrings: each described argument is one argument of the signature, by its name.

The API reference looks up the default of an argument by its name: it calls a line about two of them
required.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src" / "orderone"
ARGUMENT = re.compile(r"^ {4}(\S[^:]*):", re.MULTILINE)


def described(docstring: str) -> list[str]:
    """Return the names in the section Args of a docstring."""
    _, found, section = docstring.partition("\nArgs:\n")
    if not found:
        return []
    section = re.split(r"\n\n\S", section, maxsplit=1)[0]
    return ARGUMENT.findall(section)


def signatures(tree: ast.Module) -> Iterator[tuple[str, str, set[str]]]:
    """Yield name, docstring and argument names of functions, and of classes with __init__."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name, ast.get_docstring(node) or "", arguments(node)
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                    yield node.name, ast.get_docstring(node) or "", arguments(part)


def arguments(function: ast.FunctionDef) -> set[str]:
    everything = function.args
    named = [*everything.posonlyargs, *everything.args, *everything.kwonlyargs]
    named += [extra for extra in (everything.vararg, everything.kwarg) if extra is not None]
    return {argument.arg for argument in named}


def wrong_names(source: str) -> list[str]:
    wrong = []
    for name, docstring, known in signatures(ast.parse(source)):
        wrong += [f"{name}: {one}" for one in described(docstring) if one.lstrip("*") not in known]
    return wrong


@pytest.mark.parametrize("folder", sorted(path.name for path in SOURCES.iterdir() if path.is_dir()))
def test_every_described_argument_is_in_the_signature(folder):
    wrong = []
    for path in sorted((SOURCES / folder).rglob("*.py")):
        wrong += wrong_names(path.read_text())
    assert wrong == []


@pytest.mark.parametrize("line", ["a, b: Two at once.", "c: Not an argument."])
def test_a_wrong_description_is_noticed(line):
    assert wrong_names(f'def f(a, b=1):\n    """Do it.\n\n    Args:\n        {line}\n    """\n')
    assert not wrong_names('def f(a):\n    """Do it.\n\n    Args:\n        a: One.\n    """\n')
