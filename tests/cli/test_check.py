"""`orderone check`: what it prints, what it writes, and how it ends."""

import json
import re
import sys

import pytest

from orderone.cli.demo import CHECKED
from orderone.cli.main import main
from orderone.cli.subject import read_range, read_sizes

MINE = """
import torch
from torch import nn

count = 0

def build(width):
    first, hidden, last = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 2)
    return nn.Sequential(first, nn.ReLU(), hidden, nn.ReLU(), last)

def batch():
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()

def interrupted(width):
    global count
    count += 1
    if count == 7:  # the first two are looked at, and train first
        raise KeyboardInterrupt
    return build(width)

def broken(width):
    return 1 / 0

nothing = None
"""
OWN = ("--builder", "mine:build", "--batches", "mine:batch", "--widths", "32:128")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """A folder with a module of the user's, imported anew in every test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(MINE)


@pytest.fixture
def check(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["check", *arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize("model", ["mlp", "llama", "vit"])  # gpt2: as the demo does it, below
def test_mup_passes(check, model):
    if model in ("mlp", "vit"):
        pytest.importorskip("sklearn")
    text = ("--length", "32") if model == "llama" else ()
    status, out, err = check(
        "--model",
        model,
        "--widths",
        "64:256",
        "--batch",
        "8",
        *text,
        "--lr",
        "3e-3",
        "--seeds",
        "3",
    )
    assert status == 0, out + err
    assert re.search(
        r"^PASS: mup for adamw with lr 0.003, widths 64, 128, 256, 4 steps, 3 seeds$",
        out,
        flags=re.M,
    )
    assert not err  # nobody watches: no bar


def test_the_standard_parameterization_fails(check):
    words = ("--rule", "standard", "--lr", "1e-2", "--batch", "8", "--length", "16", "--seeds", "2")
    status, out, _ = check("--widths", "32:128", *words)
    assert status == 1
    assert "FAIL: standard for adamw" in out
    assert "because: " in out


def test_two_widths_are_too_few(check):
    status, out, _ = check(*OWN, "--widths", "32,128")
    assert status == 3
    assert "UNCLEAR: mup" in out
    assert "[too-few-sizes]" in out


def test_json_is_strict_and_complete(check):
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    status, out, _ = check(*OWN, "--json", "--first-seed", "5", "--widths", "64:256")
    data = json.loads(out, parse_constant=refuse)
    assert (status, data["verdict"], data["passed"], data["interrupted"]) == (
        0,
        "PASS",
        True,
        False,
    )
    assert data["provenance"]["model"] == "mine:build"
    assert data["provenance"]["seeds"] == [5, 6, 7]
    line = next(
        row
        for row in data["exponents"]
        if (row["module"], row["quantity"]) == ("2.weight", "update")
    )
    assert line["exponent"] == pytest.approx(-1, abs=0.1)
    assert {"low", "high", "predicted", "verdict", "cause", "role", "step"} <= set(line)


def test_files(check, tmp_path):
    from orderone.measure import read

    for package in ("plotly", "jinja2", "matplotlib"):
        pytest.importorskip(package)
    _, _, err = check(*OWN, "--html", "a.html", "--png", "a.png", "--save", "a.jsonl")
    assert err.splitlines() == ["wrote a.html", "wrote a.png", "wrote a.jsonl"]
    assert "mine:build" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    records = read(tmp_path / "a.jsonl")
    assert set(records["width"]) == {32, 64, 128}
    assert records.attrs["provenance"]["model"] == "mine:build"


def test_an_interrupted_check_shows_what_it_has(check):
    status, out, err = check(*OWN, "--builder", "mine:interrupted", "--seeds", "9")
    assert (status, err) == (130, "")
    assert "because: interrupted after 6 of 27 runs" in out
    assert re.search(
        r"UNCLEAR|PASS  ", out.split("verdict  module")[1]
    )  # two seeds were measured, and are judged


def test_depth(check):
    """That completep passes is for the tests of the check itself; here, that the words arrive
    there."""
    sizes = ("--widths", "32", "--depths", "2:8", "--batch", "4", "--length", "16")
    _, out, _ = check(*sizes, "--depth", "completep", "--seeds", "1", "--steps", "1", "--json")
    data = json.loads(out)
    assert data["provenance"]["sizes"] == [2, 4, 8]
    branches = [
        r
        for r in data["exponents"]
        if r["module"].endswith(".attn.c_proj") and r["quantity"] == "output"
    ]
    assert min(row["exponent"] for row in branches) < -0.75


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--model", "gpt3"),
            (
                "unknown model: expected one of gpt2, llama, vit, mlp; got 'gpt3'; did you mean"
                " 'gpt2'?"
            ),
        ),
        (("--widths", "64"), "widths: expected several widths"),
        (
            ("--widths", "64:128", "--depths", "2:4"),
            "widths: expected several widths, or several depths and one width",
        ),
        (("--widths", "128:64"), "widths: expected 64:1024 (doubling)"),
        (("--widths", "wide"), "got 'wide'"),
        (
            ("--widths", "40,80,160"),
            "widths: expected multiples of 16, the head size of gpt2; got 40",
        ),
        (("--length", "1000"), "length: expected at most"),
        (("--seeds", "0"), "seeds: expected a whole number, 1 or more"),
        (("--threads", "0"), "threads: expected a whole number"),
        ((*OWN, "--rule", "mupp"), "did you mean 'mup'"),
        ((*OWN, "--html", "nowhere/a.html"), "html: cannot write 'nowhere/a.html'"),
        ((*OWN, "--save", "a.csv"), "save: expected a name that ends in .jsonl or .parquet"),
        ((*OWN, "--builder", "mine"), "builder: expected package.module:function, got 'mine'"),
        ((*OWN, "--builder", "yours:build"), "builder: cannot import yours"),
        ((*OWN, "--builder", "mine:bild"), "builder: mine has no bild"),
        ((*OWN, "--builder", "mine:nothing"), "builder: expected a function of the width"),
        ((*OWN, "--builder", "mine:broken"), "ZeroDivisionError: division by zero ("),
        (("--builder", "mine:build"), "batches: --builder needs --batches"),
        (
            ("--model", "mlp", "--length", "32"),
            "length: mlp, which sees images, has no use for --length, got 32",
        ),
        (
            ("--batches", "mine:batch", "--length", "32"),
            "length: --batches has no use for --length",
        ),
        (("--batches", "mine:batch", "--batch", "8"), "batch: --batches has no use for --batch"),
        ((*OWN, "--length", "32"), "length: --builder has no use for --length"),
        ((*OWN, "--model", "mlp"), "model: --builder has no use for --model"),
        (
            (*OWN, "--depths", "3"),
            "depths: --builder, a function of what grows, has no use for --depths",
        ),
        (
            (*OWN, "--widths", "64", "--depths", "2:8"),
            "what grows, has no use for --widths, got '64'; leave it out",
        ),
    ],
)
def test_wrong_input_is_explained(check, arguments, message):
    status, out, err = check(*arguments)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(("package", "option"), [("plotly", "html"), ("matplotlib", "png")])
def test_what_cannot_be_drawn_is_said_before_the_work(check, monkeypatch, package, option):
    monkeypatch.setattr("orderone.cli.files.find_spec", lambda name: None)
    status, _, err = check(*OWN, f"--{option}", "file")
    assert status == 2
    assert f"{option}: this needs {package}; pip install" in err


def test_a_missing_package_of_a_model_is_named(check, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    status, _, err = check("--model", "gpt2", "--widths", "32:128")
    assert status == 2
    assert "pip install 'orderone[transformers]'" in err


def test_sizes():
    assert read_range("64:1024", "widths") == [64, 128, 256, 512, 1024]
    assert read_range("48:100", "widths") == [48, 96]
    assert read_range("96, 64,64", "widths") == [64, 96]
    assert read_sizes(None, None) == {"widths": [64, 128, 256, 512], "depths": [2]}
    assert read_sizes(None, "2:8") == {"widths": [128], "depths": [2, 4, 8]}


def test_the_demo_checks_both_and_writes_reports(monkeypatch, capsys, tmp_path):
    """With less work than the demo has time for; that it keeps its promise for many seeds was tried
    once."""
    from orderone.cli import demo, show

    for package in ("plotly", "jinja2"):
        pytest.importorskip(package)
    monkeypatch.setattr(demo, "WIDTHS", [64, 128, 256])
    monkeypatch.setattr(demo, "CHECK", demo.CHECK | {"seeds": 2})
    demo._check(show.console())
    out = capsys.readouterr().out
    assert "PASS: mup for adamw" in out
    assert "FAIL: standard for adamw" in out
    assert all((tmp_path / name).stat().st_size > 1_000_000 for name in CHECKED.values())
