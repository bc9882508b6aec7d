"""`orderone check`: its output, its files and its exit codes."""

import json
import re
import sys

import pytest
from support.command_line import assert_refused, orderone

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
    if count == 7:  # two models are built for the plan, then the first ones are trained
        raise KeyboardInterrupt
    return build(width)

def broken(width):
    return 1 / 0

nothing = None

def network():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

def samples(step, seed):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(32, 8, generator=generator), 6 * torch.randn(32, 1, generator=generator)

class Adapter(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.A = nn.Linear(8, rank, bias=False)
        self.B = nn.Linear(rank, 8, bias=False)
        nn.init.zeros_(self.B.weight)

    def forward(self, x):
        return self.frozen(x) + self.B(self.A(x))

def vectors():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 8, generator=generator), torch.randn(64, 8, generator=generator)
"""
WITHOUT_EFFECT = "option-without-effect"
BATCHES = "with --batches"
OWN = ("--builder", "mine:build", "--batches", "mine:batch", "--widths", "32:128")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Work in a folder with a module of the user, which every test imports again."""
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


# --- axes other than width and depth --------------------------------------------------------------

NETWORK = ("--builder", "mine:network", "--data", "mine:samples", "--lr", "1e-3", "--json")
ADAPTER = ("--builder", "mine:Adapter", "--data", "mine:vectors", "--lr", "1e-3", "--json")


def rates(out: str) -> dict[str, float]:
    lines = json.loads(out)["exponents"]
    return {x["module"]: x["exponent"] for x in lines if x["quantity"] == "learning rate"}


@pytest.mark.parametrize(
    ("axis", "power"),
    [
        (("--batch-sizes", "8:32", "--steps", "8"), 0.5),
        (("--tokens", "1e3:4e3", "--steps", "4"), -0.5),
        (("--tokens", "1e3:4e3", "--steps", "4", "--horizon", "power"), -0.32),
    ],
)
def test_trainings_of_several_sizes_are_checked(check, axis, power):
    status, out, _ = check(*NETWORK, *axis, "--seeds", "2")
    assert status in (0, 3)
    assert list(rates(out).values()) == pytest.approx([power] * 4)


@pytest.mark.parametrize(("rule", "power"), [("mup", -1.0), ("mua", -0.5)])
def test_ranks_are_checked(check, rule, power):
    status, out, _ = check(*ADAPTER, "--ranks", "2:16", "--rank-rule", rule, "--seeds", "1")
    assert rates(out)["B.weight"] == pytest.approx(power)
    assert (status == 0) == (rule == "mup")  # with mua, the first change grows like r^1/2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--batch-sizes", "4:8", "--tokens", "4:8"), "several-axes"),
        (("--batch-sizes", "4:8", "--widths", "64:128"), "several-axes"),
        (("--ranks", "4:8"), "needs-another-option"),
        (("--horizon", "power"), WITHOUT_EFFECT),
        (("--batch-sizes", "4:8", "--batch", "8"), WITHOUT_EFFECT),
        ((*NETWORK, "--batch-sizes", "8:32", "--horizon", "none"), "axis-without-rule"),
        ((*ADAPTER, "--ranks", "4:8", "--widths", "8"), WITHOUT_EFFECT),
        ((*ADAPTER, "--experts", "4:8"), "axis-not-found"),
        ((*ADAPTER, "--repetitions", "2:4"), "axis-not-found"),
        ((*ADAPTER, "--ranks", "4:8", "--rank-rule", "none"), "axis-not-found"),
        ((*ADAPTER, "--batch-sizes", "8:32"), "build-arguments"),
    ],
)
def test_an_axis_that_does_not_fit_is_refused(arguments, code, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", *arguments])
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip().endswith(f"[{code}]")


@pytest.mark.parametrize("model", ["mlp", "llama", "vit"])  # the demo's test below has gpt2
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
    for line in err.splitlines():  # a line every few seconds, and no bar without a terminal
        assert re.fullmatch(r"\d of 9(: width \d+, seed \d)? \(\d+ s\)", line)


def test_the_standard_parameterization_fails(check):
    words = ("--rule", "standard", "--lr", "1e-2", "--batch", "8", "--length", "16", "--seeds", "2")
    status, out, _ = check("--widths", "32:128", *words)
    assert status == 1
    assert "FAIL: standard for adamw" in out
    assert "because: " in out


def test_two_widths_are_inconclusive(check):
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

    for package in ("jinja2", "matplotlib"):
        pytest.importorskip(package)
    _, _, err = check(*OWN, "--html", "a.html", "--png", "a.png", "--save", "a.jsonl")
    assert err.splitlines() == ["wrote a.html", "wrote a.png", "wrote a.jsonl"]
    assert "mine:build" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    records = read(tmp_path / "a.jsonl")
    assert set(records["width"]) == {32, 64, 128}
    assert records.attrs["provenance"]["model"] == "mine:build"


def test_an_interrupted_check_prints_the_results_so_far(check):
    status, out, err = check(*OWN, "--builder", "mine:interrupted", "--seeds", "9")
    assert (status, err) == (130, "")
    assert "interrupted" in out
    assert "6 of 27" in out
    assert re.search(r"UNCLEAR|PASS  ", out.split("verdict  quantity")[1])  # two seeds were judged


def test_depth(check):
    """Test that the options reach the check; other tests show that completep passes."""
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
    ("arguments", "code", "words"),
    [
        (("--model", "gpt3"), "unknown-name", ("gpt2, llama, vit, mlp", "'gpt2'?")),
        (("--widths", "64"), None, ("widths: ", "several widths", "widths 64")),
        (("--widths", "64:128", "--depths", "2:4"), None, ("widths 64:128", "depths 2:4")),
        (("--widths", "128:64"), None, ("widths: ", "'128:64'")),
        (("--widths", "wide"), None, ("widths: ", "'wide'")),
        (("--widths", "40,80,160"), None, ("widths: ", "multiples of 16", "gpt2", "got 40")),
        (("--length", "1000"), None, ("length: ", "at most 256")),
        (("--seeds", "0"), None, ("seeds: ", "got 0")),
        (("--threads", "0"), None, ("threads: ", "got 0")),
        ((*OWN, "--rule", "mupp"), "unknown-name", ("'mup'?",)),
        ((*OWN, "--html", "nowhere/a.html"), "cannot-write-file", ("html: ", "nowhere/a.html")),
        ((*OWN, "--save", "a.csv"), None, ("save: ", ".jsonl or .parquet", "'a.csv'")),
        (
            (*OWN, "--builder", "mine"),
            "wrong-name-of-code",
            ("builder: ", "package.module:function", "'mine'"),
        ),
        ((*OWN, "--builder", "yours:build"), "cannot-import", ("builder: ", "import yours")),
        ((*OWN, "--builder", "mine:bild"), "cannot-import", ("builder: ", "mine has no bild")),
        (
            (*OWN, "--builder", "mine:nothing"),
            "not-a-builder",
            ("builder: ", "mine:nothing", "NoneType"),
        ),
        (
            (*OWN, "--builder", "mine:broken"),
            "model-raised-error",
            ("ZeroDivisionError: division by zero (", "mine.py, line "),
        ),
        (("--builder", "mine:build"), "needs-another-option", ("--builder", "--data")),
        (("--model", "mlp", "--length", "32"), WITHOUT_EFFECT, ("--length 32", "mlp", "images")),
        (("--batches", "mine:batch", "--length", "32"), WITHOUT_EFFECT, ("--length 32", BATCHES)),
        (("--batches", "mine:batch", "--batch", "8"), WITHOUT_EFFECT, ("--batch 8", BATCHES)),
        ((*OWN, "--length", "32"), WITHOUT_EFFECT, ("--length 32", "with --builder")),
        ((*OWN, "--model", "mlp"), WITHOUT_EFFECT, ("--model 'mlp'", "with --builder")),
        ((*OWN, "--depths", "3"), WITHOUT_EFFECT, ("--depths '3'", "several --widths")),
        (
            (*OWN, "--widths", "64", "--depths", "2:8"),
            WITHOUT_EFFECT,
            ("--widths '64'", "several --depths"),
        ),
    ],
)
def test_wrong_input_is_refused(arguments, code, words):
    assert_refused(orderone("check", *arguments), code, *words)


@pytest.mark.parametrize(("package", "option"), [("jinja2", "html"), ("matplotlib", "png")])
def test_a_missing_package_for_drawing_is_named_before_the_work(monkeypatch, package, option):
    monkeypatch.setattr("orderone.cli.files.find_spec", lambda name: None)
    ended = orderone("check", *OWN, f"--{option}", "file")
    assert_refused(ended, "missing-package", f"{option}: ", package, "pip install")


def test_a_missing_package_of_a_model_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    ended = orderone("check", "--model", "gpt2", "--widths", "32:128")
    assert_refused(ended, "missing-package", "pip install 'orderone[transformers]'")


def test_sizes():
    assert read_range("64:1024", "widths") == [64, 128, 256, 512, 1024]
    assert read_range("48:100", "widths") == [48, 96]
    assert read_range("96, 64,64", "widths") == [64, 96]
    assert read_sizes(None, None) == {"widths": [64, 128, 256, 512], "depths": [2]}
    assert read_sizes(None, "2:8") == {"widths": [128], "depths": [2, 4, 8]}


def test_the_demo_checks_both_rules_and_writes_reports(monkeypatch, capsys, tmp_path):
    """Run the demo's check with fewer widths and seeds."""
    from orderone.cli import demo, show

    pytest.importorskip("jinja2")
    monkeypatch.setattr(demo, "WIDTHS", [64, 128, 256])
    monkeypatch.setattr(demo, "CHECK", demo.CHECK | {"seeds": 2})
    demo._check(show.console())
    out = capsys.readouterr().out
    assert "PASS: mup for adamw" in out
    assert "FAIL: standard for adamw" in out
    assert all((tmp_path / name).stat().st_size > 500_000 for name in CHECKED.values())
