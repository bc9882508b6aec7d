"""The tests check the types of the library at run time: arguments, results and fields, but not
values that users pass."""

import importlib
import sys

import pytest
from beartype.roar import BeartypeCallHintViolation
from support import typechecking

import orderone as o1
from orderone import planning

MODULE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import Annotated


class UserInput: ...


def half(number: int) -> int:
    return number / 2


def outer(number):
    def inner(number: int):
        return number
    return inner(number)


def asks_a_user(number: Annotated[int, UserInput], other: int = 0):
    return number


@dataclass(frozen=True)
class Point:
    x: int

    @classmethod
    def at(cls, x: int) -> "Point":
        return cls(x)

    @property
    def wrong(self) -> str:
        return self.x
"""


@pytest.fixture(params=["", "from __future__ import annotations"], ids=["types", "strings"])
def module(request, tmp_path, monkeypatch):
    source = MODULE.replace("from __future__ import annotations", request.param)
    (tmp_path / "typed_example.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "typed_example", raising=False)
    typechecking.install("typed_example")
    yield importlib.import_module("typed_example")
    del sys.modules["typed_example"]


def test_arguments_results_and_fields_are_checked(module):
    assert module.outer(1) == 1
    assert module.Point.at(1) == module.Point(1)
    for wrong in (
        lambda: module.half("1"),
        lambda: module.half(1),
        lambda: module.outer("1"),
        lambda: module.Point("1"),
        lambda: module.Point.at("1"),
        lambda: module.Point(1).wrong,
        lambda: module.asks_a_user(1, "1"),
    ):
        with pytest.raises(BeartypeCallHintViolation):
            wrong()


def test_values_of_users_are_left_to_the_library(module):
    assert module.asks_a_user("anything") == "anything"


def test_the_library_is_checked():
    assert "__type_checker__" in vars(planning)
    assert hasattr(o1.plan, "__wrapped__")
