"""Errors carry a code, survive a trip between processes, and every code is explained."""

import ast
import pickle
from pathlib import Path
from typing import Any

import pytest
from support.errors import refuses
from torch import nn

import orderone
from orderone.core.codes import EXPLANATIONS, SECTIONS
from orderone.core.errors import (
    InputError,
    code_of,
    function,
    instance,
    one_of,
    shortened,
    with_code,
    without_code,
)
from orderone.core.exact import count
from orderone.measure.judge.causes.table import TABLE

# functions and classes beside those called ...Error
MESSAGES = {"with_code", "AmbiguousRole", "BrokenRatios", "NotStackable"}
SOURCES = sorted(Path(orderone.__file__).parent.rglob("*.py"))


def literal_codes() -> dict[str, set[str]]:
    """Return the codes of causes and those passed to InputError and with_code, and their files."""
    codes: dict[str, set[str]] = {cause.code: {"causes"} for cause in TABLE}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or len(node.args) < 2:
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            is_message = name in MESSAGES or name.endswith("Error")
            code = node.args[1]
            if is_message and isinstance(code, ast.Constant) and isinstance(code.value, str):
                codes.setdefault(code.value, set()).add(str(path))
    return codes


def test_every_code_in_the_sources_is_explained_and_every_explanation_is_used() -> None:
    used = literal_codes()
    unexplained = {code: files for code, files in used.items() if code not in EXPLANATIONS}
    assert not unexplained
    unused = set(EXPLANATIONS) - set(used) - {"invalid-argument"}
    assert not unused


def test_a_code_has_one_section() -> None:
    assert sum(len(section) for section in SECTIONS.values()) == len(EXPLANATIONS)


def test_explanations_are_sentences() -> None:
    for code, text in EXPLANATIONS.items():
        assert text[0].isupper(), code
        assert text.endswith("."), code


def test_the_code_stands_at_the_end_of_a_message() -> None:
    message = with_code("pass inputs=", "needs-example-batch")
    assert message == "pass inputs= [needs-example-batch]"
    assert code_of(message) == "needs-example-batch"
    assert without_code(message) == "pass inputs="


@pytest.mark.parametrize("message", ["no code", "a list [1, 2]", "an index [3]", "[a-b] first"])
def test_brackets_that_are_no_code(message: str) -> None:
    assert code_of(message) is None
    assert without_code(message) == message


def test_a_message_that_is_cut_off_keeps_its_code() -> None:
    message = "long " * 200
    assert code_of(shortened(message)) is None
    cut = shortened(with_code(message, "trial-failed"))
    assert len(cut) < 400
    assert code_of(cut) == "trial-failed"


def test_an_error_is_a_value_error_and_survives_pickling() -> None:
    error = InputError("steps: expected 1 or more, got 0", argument="steps")
    copy: InputError = pickle.loads(pickle.dumps(error))
    assert isinstance(error, ValueError)
    assert (str(copy), copy.code, copy.argument) == (str(error), "invalid-argument", "steps")
    assert str(error) == "steps: expected 1 or more, got 0"


def test_checks_of_single_values() -> None:
    assert one_of("Adam", ("adam", "sgd"), "optimizer") == "adam"
    with refuses("unknown-name", argument="optimizer") as caught:
        one_of("adma", ("adam", "sgd"), "optimizer")
    assert "did you mean 'adam'" in str(caught.value)
    with refuses("wrong-type", argument="plan"):
        instance(3, str, "plan", "make one with o1.plan")
    with refuses("wrong-type", argument="build"):
        function(3, "build", "of the width")


@pytest.mark.parametrize(
    ("value", "words"), [("1e-3", "remove the quotes"), ("many", "the text"), (-1, "-1")]
)
def test_a_number_in_quotes_gets_a_remedy(value: object, words: str) -> None:
    with refuses("invalid-argument", argument="steps") as refused:
        count(value, "steps")
    assert words in str(refused.value)


@pytest.mark.parametrize("misspelt", ["stepps", "width"])
def test_a_misspelt_option_is_corrected_by_all_arguments_of_the_function(misspelt: str) -> None:
    wrong: dict[str, Any] = {misspelt: 5}
    with refuses("unknown-name") as refused:
        orderone.coord_check(nn.Linear, **wrong)
    assert f"{misspelt!r}; did you mean" in str(refused.value)
    with refuses("unknown-name") as refused:
        orderone.sweep(nn.Linear, {}, **wrong)
    assert f"{misspelt!r}; did you mean" in str(refused.value)
