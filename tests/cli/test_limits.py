"""`orderone predict limits`."""

import json

import pytest
from support.command_line import Ended, assert_refused, orderone


def run(*arguments: object) -> Ended:
    return orderone("predict", "limits", *arguments)


def test_text_and_a_page(tmp_path):
    page = tmp_path / "limits.html"
    result = run(
        "--depth",
        "40",
        "--width",
        "40",
        "--activation",
        "relu",
        "--samples",
        "500",
        "--html",
        str(page),
    )
    assert result.status == 0, result.err
    assert "width 40, depth 40, relu: degenerate" in result.out
    assert "ks 0." in result.out
    assert 'data-figure="0"' in page.read_text()


def test_tables_fit_80_columns():
    result = run("--depth", "30", "--width", "40", "--samples", "300", "--activation", "linear")
    rows = [line for line in result.out.splitlines() if " .. " in line]
    assert len(rows) == 6
    assert all(len(line) <= 80 for line in result.out.splitlines() if "│" in line)
    assert "…" not in result.out


@pytest.mark.parametrize(
    ("arguments", "name", "compared"),
    [
        (("--activation", "shaped-smooth", "--phi", "sin", "--a", "1.5"), "shaped-smooth", True),
        (("--activation", "resnet"), "relu", False),
        (("--activation", "gelu", "--residual"), "gelu", False),
    ],
)
def test_every_kind_of_network(arguments, name, compared):
    result = run("--depth", "30", "--width", "60", "--samples", "1000", "--json", *arguments)
    assert result.status == 0, result.err
    data = json.loads(result.out)
    assert data["activation"] == name
    assert bool(data["comparison"]) == compared
    if compared:
        assert data["comparison"]["ρ"]["ks"]["value"] < 0.1
        assert data["norm_spread"] == pytest.approx(
            data["comparison"]["log V₁₁"]["network"]["std"], rel=0.1
        )


def test_json():
    result = run(
        "--depth",
        "20",
        "--width",
        "60",
        "--activation",
        "shaped-relu",
        "--samples",
        "500",
        "--json",
    )
    data = json.loads(result.out)
    assert data["regime"] == "lognormal"
    assert data["ratio"] == pytest.approx(1 / 3)
    assert data["comparison"]["ρ"]["ks"]["value"] < 0.2
    residual = json.loads(run("--residual", "--json").out)
    assert residual["comparison"] == {}
    assert residual["regime"] == "gaussian"
    assert json.loads(run("--samples", "0", "--json").out)["comparison"] == {}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--width", "0"), None, ("width: ", "got 0")),
        (("--activation", "gelo"), "unknown-name", ("'gelu'?",)),
        (("--activation", "gelu", "--depth", "5", "--html", "x.html"), "no-random-limit", ()),
        (("--phi", "sin"), "option-without-effect", ("--phi 'sin'", "relu", "shaped-smooth")),
        (
            ("--activation", "shaped-relu", "--a", "2"),
            "option-without-effect",
            ("--a 2.0", "shaped-relu"),
        ),
        (("--samples", "-1"), None, ("samples: ", "got -1")),
        (("--residual", "--html", "x.html"), "no-random-limit", ()),
        (
            ("--samples", "50", "--depth", "4", "--html", "/no/such/folder/x.html"),
            "cannot-write-file",
            ("html: ", "/no/such/folder/x.html"),
        ),
    ],
)
def test_wrong_input_is_refused(arguments, code, words):
    assert_refused(orderone("predict", "limits", *arguments), code, *words)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--activation", "shaped-smooth", "--phi", "tan"), "phi"), (("--rho0", "1"), "rho0")],
)
def test_wrong_input_of_the_theory_is_refused(arguments, word):
    ended = orderone("predict", "limits", *arguments)
    assert ended.status == 2
    assert word in ended.err
