"""`orderone predict limits`, in a process of its own."""

import json
import subprocess

import pytest
from support.warm import orderone


def run(*arguments: str) -> subprocess.CompletedProcess:
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
    assert result.returncode == 0, result.stderr
    assert "width 40, depth 40, relu: degenerate" in result.stdout
    assert "ks 0." in result.stdout
    assert 'data-figure="0"' in page.read_text()


def test_tables_fit_into_a_terminal():
    result = run("--depth", "30", "--width", "40", "--samples", "300", "--activation", "linear")
    rows = [line for line in result.stdout.splitlines() if " .. " in line]
    assert len(rows) == 6
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if "│" in line)
    assert "…" not in result.stdout


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
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
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
    data = json.loads(result.stdout)
    assert data["regime"] == "lognormal"
    assert data["ratio"] == pytest.approx(1 / 3)
    assert data["comparison"]["ρ"]["ks"]["value"] < 0.2
    residual = json.loads(run("--residual", "--json").stdout)
    assert residual["comparison"] == {}
    assert residual["regime"] == "gaussian"
    assert json.loads(run("--samples", "0", "--json").stdout)["comparison"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--width", "0"), "width: expected a whole number"),
        (("--activation", "gelo"), "did you mean 'gelu'"),
        (
            ("--activation", "gelu", "--depth", "5", "--html", "x.html"),
            "html: expected networks with a random limit",
        ),
        (("--activation", "shaped-smooth", "--phi", "tan"), "phi"),
        (
            ("--phi", "sin"),
            (
                "phi: relu has no use for --phi (give --activation shaped-smooth), got 'sin'; leave"
                " it out"
            ),
        ),
        (("--activation", "shaped-relu", "--a", "2"), "a: shaped-relu has no use for --a"),
        (("--rho0", "1"), "rho0"),
        (("--samples", "-1"), "samples: expected a whole number"),
        (("--residual", "--html", "x.html"), "html: expected networks with a random limit"),
        (("--samples", "50", "--depth", "4", "--html", "/no/such/folder/x.html"), "html: "),
    ],
)
def test_wrong_input(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
