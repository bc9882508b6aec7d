"""The tests check the types of the library at run time: arguments, results and fields, but not
values that users pass."""

import gc
import importlib
import sys
import weakref

import numpy
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


def adder(number):
    def add(other: int) -> int:
        return other + number
    return add


def local_type(kind):
    def same(value: kind):
        return value
    return same


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


def test_functions_within_functions_are_checked_at_every_definition(module):
    for number in (1, 2, 3):
        assert module.adder(number)(1) == 1 + number
        assert module.adder(number).__wrapped__(1) == 1 + number
        for wrong in (lambda n=number: module.adder(n)("1"), lambda: module.adder(0.5)(1)):
            with pytest.raises(BeartypeCallHintViolation):
                wrong()


def test_types_of_functions_within_functions_may_differ(module):
    if module.local_type(int).__annotations__["value"] == "kind":
        return  # names of local types cannot be resolved: such values are not checked
    for kind, value, other in ((int, 1, "1"), (str, "1", 1), (int, 2, "2")):
        assert module.local_type(kind)(value) == value
        with pytest.raises(BeartypeCallHintViolation):
            module.local_type(kind)(other)


def test_functions_within_functions_keep_nothing_alive(module):
    value = numpy.ones(1)
    alive = weakref.ref(value)
    assert callable(module.adder(value))
    del value
    gc.collect()
    assert alive() is None


def test_values_of_users_are_left_to_the_library(module):
    assert module.asks_a_user("anything") == "anything"


def test_the_library_is_checked():
    assert "__type_checker__" in vars(planning)
    assert hasattr(o1.plan, "__wrapped__")
