"""Scripts of `benchmarks`: what became slower, a predicted exponent, the table of models."""

import argparse
import importlib.util
import json
import re
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace

import pandas
import pytest


def load(name):
    script = Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def compare():
    return load("compare")


@pytest.mark.slow
@pytest.mark.parametrize("noise", [6.0, 1.5])
def test_the_signal_in_gradients_predicts_the_exponent_of_the_batch_size(noise):
    """Between the predictions at the first and the last weights, within four standard errors."""
    script = load("batch_signal")
    seeds = range(8)
    first = sum(script.predicted(script.network(seed), noise, seed) for seed in seeds) / 8
    trained = [script.trained("adam", 64, seed, noise)[1] for seed in seeds]
    last = sum(script.predicted(trained[seed], noise, seed) for seed in seeds) / 8
    found = [script.measured("adam", noise, seed) for seed in seeds]
    error = stdev(found) / len(found) ** 0.5
    assert first - 4 * error < mean(found) < last + 4 * error
    assert first < last < -0.05


def seconds(median, low, high):
    return {"median": median, "low": low, "high": high, "samples": 5}


def write(path, times, gpu="A"):
    content = {"versions": {"torch": "2"}, "device": {"gpu": gpu}, "seconds": times}
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize(
    ("new", "status", "word"),
    [
        (seconds(1.3, 1.2, 1.4), 1, "SLOWER"),
        (seconds(1.3, 1.0, 1.4), 0, None),  # intervals overlap
        (seconds(1.06, 1.055, 1.08), 0, None),  # too little
        (seconds(0.5, 0.4, 0.6), 0, "faster"),
    ],
)
def test_changes_beyond_noise(compare, tmp_path, capsys, new, status, word):
    old = write(tmp_path / "old.json", {"case": seconds(1.0, 0.9, 1.05)})
    assert compare.main([old, write(tmp_path / "new.json", {"case": new})]) == status
    printed = capsys.readouterr().out
    assert ("SLOWER" in printed) == (word == "SLOWER")
    assert ("faster" in printed) == (word == "faster")


def test_other_devices_are_refused(compare, tmp_path):
    old = write(tmp_path / "old.json", {"case": seconds(1.0, 0.9, 1.1)})
    new = write(tmp_path / "new.json", {"case": seconds(3.0, 2.9, 3.1)}, gpu="B")
    assert compare.main([old, new]) == 2
    assert compare.main([old, new, "--anyway"]) == 1


def test_a_device_that_only_one_run_has_is_refused(compare, tmp_path):
    old = Path(write(tmp_path / "old.json", {"case": seconds(1.0, 0.9, 1.1)}))
    new = write(tmp_path / "new.json", {"case": seconds(0.1, 0.1, 0.1)})
    content = json.loads(old.read_text())
    content["device"] = {}
    old.write_text(json.dumps(content))
    assert compare.main([str(old), new]) == 2
    assert compare.main([new, str(old)]) == 2


def test_processors_have_names(monkeypatch, tmp_path):
    records = load("records")
    monkeypatch.setattr(records, "CPU", tmp_path / "cpuinfo")
    assert records.processor()  # a system without this file
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name : Quick 9000\nflags : fpu\n")
    assert records.device()["cpu"] == "Quick 9000"


def test_gpu_checks_stop_at_their_limits_and_are_not_repeated(tmp_path, capsys):
    script = load("gpu_checks")
    checks = [
        script.Check("quick", ("-c", "print('measured')"), 60, "?"),
        script.Check("slow", ("-c", "import time; time.sleep(600)"), 1, "?"),
        script.Check("broken", ("-c", "raise SystemExit(3)"), 60, "?"),
    ]
    assert script.main(["--out", str(tmp_path)], checks) == 1
    assert (tmp_path / "quick.txt").read_text() == "measured\n\nexit status 0\n"
    assert "its limit" in (tmp_path / "slow.txt").read_text()
    assert "exit status 3" in (tmp_path / "broken.txt").read_text()
    capsys.readouterr()
    assert script.main(["--out", str(tmp_path), "--only", "quick,broken"], checks) == 1
    assert "== quick" not in capsys.readouterr().out


def test_scripts_of_gpu_checks_exist():
    script = load("gpu_checks")
    for check in script.CHECKS:
        assert (script.ROOT / check.words[0]).exists()


def test_the_start_study_leaves_out_what_is_recorded():
    script = load("start_study")
    pieces = list(script.all_pieces())
    recorded = pandas.read_csv(script.ROOT / "docs/results/start-study.csv")
    one = recorded[(recorded["architecture"] == "vit") & (recorded["width"] == 512)]
    one = one[one["optimizer"] == "adamw"]
    known = [piece for piece in pieces if script.is_known(piece, one)]
    rules = [(piece.options["optimizer"], piece.space["rule"]) for piece in known]
    assert rules == [("adamw", ["mup"]), ("adamw", ["standard"])]
    assert {piece.architecture for piece in known} == {"vit"}
    assert not any(script.is_known(piece, None) for piece in pieces)


def test_losses_on_the_page_about_starts_are_those_of_the_records(capsys):
    script = load("start_study")
    script.report(pandas.read_csv(script.ROOT / "docs/results/start-study.csv"))
    loss = re.compile(r"-?\d\.\d{3} ± \d\.\d{3}")
    recorded = set(loss.findall(capsys.readouterr().out))
    page = (script.ROOT / "docs/choosing-the-start.md").read_text()
    results = page[page.index("### Results") :]
    tables = "\n".join(line for line in results.splitlines() if line.startswith("|"))
    printed = loss.findall(tables)
    assert len(printed) > 50
    assert set(printed) <= recorded


def test_the_table_of_hugging_face_models_is_written_row_by_row(tmp_path, monkeypatch):
    matrix = load("hf_matrix")
    words = ["llama", "t5", "bloom"]
    cells = matrix.selected(words)
    assert cells[:3] == [
        matrix.Cell("bloom", "bfloat16", "eager"),  # it has no fused attention
        matrix.Cell("llama", "bfloat16", "sdpa"),
        matrix.Cell("t5", "bfloat16", "sdpa"),
    ]
    assert len(cells) == len(set(cells)) == 2 * (2 + 2 + 1)
    path = matrix.table_path(matrix.TABLES[0], tmp_path)
    matrix.append(path, ["llama", "bfloat16", "sdpa", "yes", "done before, by another process"])
    made = []

    def make(cell, setting):
        made.append(cell)
        if cell.family == "t5":
            raise ValueError("no such model")
        return ["yes"]

    monkeypatch.setattr(matrix, "TABLES", (matrix.TABLES[0]._replace(make=make),))
    for number in range(2):
        options = {"words": words, "out": tmp_path, "worker": "distances", "number": number}
        matrix.work(argparse.Namespace(**options, jobs=2))
    assert sorted(made) == sorted(set(cells) - {matrix.Cell("llama", "bfloat16", "sdpa")})
    table = pandas.read_csv(path, names=[*matrix.CELL, *matrix.DISTANCES])
    assert len(table) == len(cells)
    assert set(table.stacked[table.family == "t5"]) == {"ValueError: no such model"}


def test_times_of_hugging_face_models_on_the_page_about_speed_are_those_of_the_records():
    root = Path(__file__).parents[1]
    recorded = pandas.read_csv(root / "docs/results/hf-h200-times.csv", dtype=str)
    columns = ["ms eager", "ms replayed", "ms stacked"]
    expected = sorted(recorded[columns].stack().dropna())
    page = (root / "docs/speed.md").read_text()
    table = page[page.index("Other families are faster") : page.index("An empty cell means")]
    assert sorted(re.findall(r"(\d+\.\d\d) ms", table)) == expected


def test_a_note_on_compilation_is_no_refusal_of_a_stack():
    matrix = load("hf_matrix")
    compiled = SimpleNamespace(facts={"engine": "stacked", "compile choice": "not compiled"})
    alone = SimpleNamespace(facts={"engine": "alone", "not stacked": "x[mask]"})
    assert matrix.refusal(SimpleNamespace(outcomes={0: compiled})) is None
    assert matrix.refusal(SimpleNamespace(outcomes={0: compiled, 1: alone})) == "x[mask]"


def test_the_report_of_hugging_face_models_leaves_missing_values_empty(tmp_path, capsys):
    matrix = load("hf_matrix")
    rows = {"distances": ["not stacked"], "times": ["stacked", "3.0", "2.0", "1.0", "3.0", "2.0"]}
    for table in matrix.TABLES:
        path = matrix.table_path(table, tmp_path)
        matrix.append(path, [*matrix.CELL, *table.columns])
        matrix.append(path, ["llama", "bfloat16", "sdpa", *rows[table.name]])
    matrix.report(tmp_path)
    assert "| llama | bfloat16 | sdpa | not stacked |  |" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["gpt", "llama", "qwen3", "gpt2", "vit", "t5"])
def test_models_of_stacks_can_be_built(monkeypatch, kind):
    folder = Path(__file__).parents[1] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    script = load("stacked")
    inputs, targets = script.batch_of(kind)
    loss = script.loss_of(script.model_of(kind, 32), inputs[0][:1], targets[0][:1])
    assert loss.isfinite()
