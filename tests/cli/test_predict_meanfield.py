"""`orderone predict meanfield` and `orderone predict phase`."""

import json
import math

import pytest
from support.command_line import Ended, assert_refused, orderone


def run(*words: str) -> Ended:
    return orderone("predict", *words)


def test_json_has_the_documented_keys():
    words = (
        "--activation",
        "tanh",
        "--weight-var",
        "1.4",
        "--bias-var",
        "0.1",
        "--keep",
        "0.9",
        "--json",
    )
    data = json.loads(run("meanfield", *words).out)
    names = ["q_star", "c_star", "chi1", "chi2", "xi1", "xi2", "phase", "status", "trainable_depth"]
    assert list(data) == names
    assert (data["phase"], data["status"]) == ("ordered", "converged")
    assert data["q_star"] == pytest.approx(0.5501625174131424, abs=1e-11)
    assert data["trainable_depth"] == pytest.approx(12 * min(data["xi1"], data["xi2"]))


def test_a_diverging_length_is_infinite():
    data = json.loads(
        run(
            "meanfield",
            "--activation",
            "relu",
            "--weight-var",
            "2.5",
            "--bias-var",
            "0.1",
            "--json",
        ).out
    )
    assert (data["q_star"], data["status"], data["phase"]) == (math.inf, "diverges", "chaotic")


def test_a_table():
    result = run("meanfield", "--activation", "leaky-relu(0.2)", "--weight-var", "1.5")
    assert result.status == 0, result.err
    assert "trainable_depth" in result.out
    assert "ordered" in result.out


def test_a_diagram_as_json_and_as_a_page(tmp_path):
    page = tmp_path / "phases.html"
    result = run(
        "phase",
        "--weight-var",
        "0.5:4:8",
        "--bias-var",
        "0.01,0.1,0.3",
        "--keep",
        "0.9",
        "--html",
        str(page),
        "--json",
    )
    assert result.status == 0, result.err
    data = json.loads(result.out)
    assert len(data["weight_var"]) == 8
    assert len(data["chi1"]) == 8
    assert len(data["chi1"][0]) == 3
    assert data["phase"][0][0] == "ordered"
    assert data["phase"][-1][0] == "chaotic"
    assert "Phases of tanh networks" in page.read_text()


def test_a_diagram_as_a_map():
    result = run("phase", "--activation", "relu", "--weight-var", "1:3:30")
    assert result.status == 0, result.err
    assert "...............!!!!!!!!!!!!!!!" in result.out
    assert "Along the critical line" in result.out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("meanfield", "--activation", "tahn"), "unknown-name", ("'tanh'?",)),
        (("phase", "--weight-var", "1:2"), None, ("--weight-var: ", "'1:2'")),
        (("phase", "--weight-var", "1:2:0"), None, ("--weight-var: ", "'1:2:0'")),
        (("phase", "--bias-var", "a,b"), None, ("--bias-var: ", "'a,b'")),
        (
            ("phase", "--bias-var", "0:1:100000", "--weight-var", "0:1:100000"),
            None,
            ("--weight-var, --bias-var: ", "100000 x 100000"),
        ),
        (("phase", "--html", "missing/x.html"), "cannot-write-file", ("html: ", "missing/x.html")),
    ],
)
def test_wrong_input_is_refused(arguments, code, words):
    assert_refused(run(*arguments), code, *words)


@pytest.mark.parametrize(("option", "value"), [("--weight-var", "-1"), ("--keep", "0")])
def test_wrong_input_of_the_theory_is_refused(option, value):
    ended = run("meanfield", option, value)
    assert ended.status == 2
    assert f"{option[2:].replace('-', '_')}: expected" in ended.err


@pytest.mark.parametrize("columns", [40, 80])
def test_a_diagram_fits_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run("phase", "--weight-var", "0.5:4:100", "--bias-var", "0.01,0.1").out.splitlines()
    assert max(len(line) for line in lines) <= columns


def test_json_is_strict_and_keeps_infinity(capsys):
    """Strict JSON parsers refuse Infinity, but accept 1e999 as a number."""
    from orderone.cli.show import print_json

    value = {"a": math.inf, "b": [-math.inf, 1.5, (math.nan,)], "c": {"d": "Infinity"}}
    print_json(value)
    text = capsys.readouterr().out
    assert "1e999" in text
    strict = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert strict == {"a": math.inf, "b": [-math.inf, 1.5, [None]], "c": {"d": "Infinity"}}
