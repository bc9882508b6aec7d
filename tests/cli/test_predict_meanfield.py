"""`orderone predict meanfield` and `orderone predict phase`, in a process of their own."""

import json
import math
import subprocess

import pytest
from support.warm import orderone


def run(*words: str) -> subprocess.CompletedProcess:
    return orderone("predict", *words)


def test_json_has_the_promised_keys():
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
    data = json.loads(run("meanfield", *words).stdout)
    names = ["q_star", "c_star", "chi1", "chi2", "xi1", "xi2", "phase", "status", "trainable_depth"]
    assert list(data) == names
    assert (data["phase"], data["status"]) == ("ordered", "converged")
    assert data["q_star"] == pytest.approx(0.5501625174131424, abs=1e-11)
    assert data["trainable_depth"] == pytest.approx(12 * min(data["xi1"], data["xi2"]))


def test_what_diverges_is_infinite():
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
        ).stdout
    )
    assert (data["q_star"], data["status"], data["phase"]) == (math.inf, "diverges", "chaotic")


def test_a_table():
    result = run("meanfield", "--activation", "leaky-relu(0.2)", "--weight-var", "1.5")
    assert result.returncode == 0, result.stderr
    assert "trainable_depth" in result.stdout
    assert "ordered" in result.stdout


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
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert len(data["weight_var"]) == 8
    assert len(data["chi1"]) == 8
    assert len(data["chi1"][0]) == 3
    assert data["phase"][0][0] == "ordered"
    assert data["phase"][-1][0] == "chaotic"
    assert "Phases of tanh networks" in page.read_text()


def test_a_diagram_as_a_map():
    result = run("phase", "--activation", "relu", "--weight-var", "1:3:30")
    assert result.returncode == 0, result.stderr
    assert "...............!!!!!!!!!!!!!!!" in result.stdout
    assert "Along the critical line" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("meanfield", "--activation", "tahn"), "did you mean 'tanh'"),
        (("meanfield", "--weight-var", "-1"), "weight_var: expected 0 or more"),
        (("meanfield", "--keep", "0"), "keep: expected in (0, 1]"),
        (("phase", "--weight-var", "1:2"), "--weight-var: expected from:to:count"),
        (("phase", "--weight-var", "1:2:0"), "--weight-var: expected from:to:count"),
        (("phase", "--bias-var", "a,b"), "--bias-var: expected from:to:count"),
        (("phase", "--bias-var", "0:1:100000", "--weight-var", "0:1:100000"), "expected at most"),
    ],
)
def test_wrong_input_is_explained(words, message):
    result = run(*words)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_page_that_cannot_be_written_is_said_before_the_work(tmp_path):
    result = run("phase", "--html", str(tmp_path / "missing" / "x.html"))
    assert result.returncode == 2
    assert "html: cannot write" in result.stderr
    assert "Traceback" not in result.stderr


def test_json_is_strict_and_keeps_infinity(capsys):
    """Strict parsers know no Infinity; 1e999 is a number to them."""
    from orderone.cli.show import print_json

    value = {"a": math.inf, "b": [-math.inf, 1.5, (math.nan,)], "c": {"d": "Infinity"}}
    print_json(value)
    text = capsys.readouterr().out
    assert "1e999" in text
    strict = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert strict == {"a": math.inf, "b": [-math.inf, 1.5, [None]], "c": {"d": "Infinity"}}
