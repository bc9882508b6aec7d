"""Every study runs at a tiny size on a CPU, resumes, and prints its tables."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from studies.architectures import run as architectures
from studies.batch_tokens import run as batch_tokens
from studies.depth import run as depth
from studies.experts import run as experts
from studies.ladder import run as ladder
from studies.optimizers import run as optimizers
from studies.pieces import Records

ALL = [architectures, batch_tokens, depth, experts, ladder, optimizers]


def start(study, folder, *options):
    return study.main(["--tiny", "--device", "cpu", "--records", str(folder), *options])


def test_architectures(tmp_path, capsys):
    assert start(architectures, tmp_path, "--list", "--only", "llama") == 1
    assert start(architectures, tmp_path, "--only", "llama") == 0
    frame = Records(tmp_path).read()
    assert set(frame["piece"]) == {"llama-mup-32", "llama-mup-64", "llama-standard-64"}
    assert start(architectures, tmp_path, "--list", "--only", "llama") == 0
    capsys.readouterr()
    assert start(architectures, tmp_path, "--report", "--figure", str(tmp_path / "drift.png")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[1] for line in lines[2:]] == ["mup", "standard"]
    assert (tmp_path / "drift.png").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.parametrize("study", ALL)
def test_all_pieces(study, tmp_path, capsys):
    assert start(study, tmp_path) == 0
    capsys.readouterr()
    assert start(study, tmp_path, "--report") == 0
    assert len(capsys.readouterr().out.splitlines()) > 3


def test_ladder(tmp_path, capsys):
    assert start(ladder, tmp_path, "--only", "tune-full") == 0
    assert start(ladder, tmp_path, "--only", "tune-full-next") == 0  # its rates follow the base
    frame = Records(tmp_path).read()
    assert set(frame["size"]) == {"base", "next"}
    assert set(frame["batch"]) == {2, 3}
    (tmp_path / ladder.FORECAST).write_text(json.dumps({"width": {"rates": {"large": 1e-3}}}))
    assert start(ladder, tmp_path, "--only", "run-width") == 0
    capsys.readouterr()
    assert start(ladder, tmp_path, "--report") == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["base", "next", "large"]


def test_sizes_of_the_ladder_are_those_of_its_models():
    setting = ladder.Setting(ladder.FULL, "meta", Path("data"))
    for size in (*ladder.FULL.pilot, *ladder.FULL.tuned, *ladder.FULL.large):
        with torch.device("meta"):
            model = setting.build(size.width, size.layers)
        assert size.parameters() == sum(tensor.numel() for tensor in model.parameters())
        assert ladder.FULL.held_out % size.batch == 0
        assert ladder.FULL.tokens(size) <= 4 * 214_845_356  # no text is used more than four times


def test_the_forecast_of_the_ladder_finds_a_known_law(tmp_path):
    """Synthetic losses: the optimum stays, and the loss is a power of the parameters."""
    rng = np.random.default_rng(0)
    rows = []
    for size in ladder.FULL.tuned:
        for lr, seed in itertools.product(2.0 ** np.arange(-11, -4), range(3)):
            loss = true_loss(size) + 0.02 * (np.log2(lr) + 8) ** 2 + 0.002 * rng.standard_normal()
            rows.append((size.name, size.width, size.parameters(), lr, seed, loss))
    columns = ["size", "width", "parameters", "lr", "seed", "loss"]
    frame = pandas.DataFrame(rows, columns=pandas.Index(columns))
    frame = frame.assign(method="full", rule="mup", diverged=False)
    forecast = ladder.forecast(frame, ladder.FULL)
    for size in ladder.FULL.large:
        assert np.log2(forecast["full"]["rates"][size.name]) == pytest.approx(-8, abs=0.1)
    _, low, high = forecast["full"]["losses"]["37.6M"]
    assert low < true_loss(ladder.FULL.large[1]) < high
    assert high - low < 0.3
    assert "84M" not in forecast["full"]["losses"]
    (tmp_path / ladder.FORECAST).write_text(json.dumps(forecast))
    pieces = ladder.all_pieces(ladder.Setting(ladder.FULL, "cpu", tmp_path), tmp_path)
    assert {p.name for p in pieces if p.name.endswith("84M")} == {"run-full-84M"}
    assert {p.labels["method"] for p in pieces if "37.6M" in p.name} == {"full", "width"}


def true_loss(size):
    return 0.6 + 8.0 * size.parameters() ** -0.2


def test_no_large_model_is_trained_before_the_forecast(tmp_path):
    setting = ladder.Setting(ladder.FULL, "cpu", tmp_path)
    assert all(p.name.startswith("tune-") for p in ladder.all_pieces(setting, tmp_path))


def test_depth(tmp_path, capsys):
    assert start(depth, tmp_path, "--only", "adamw-base,adamw-completep") == 0
    capsys.readouterr()
    assert start(depth, tmp_path, "--report") == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["completep"]


def test_batch_and_tokens(tmp_path, capsys):
    assert start(batch_tokens, tmp_path, "--only", "timescale-128") == 0
    capsys.readouterr()
    assert start(batch_tokens, tmp_path, "--report") == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["batch"]


def test_the_exponents_of_batch_and_tokens_are_those_of_a_known_law():
    rows = []
    for batch, lr, seed in itertools.product((16, 64, 256), 2.0 ** np.arange(-12, -5), range(2)):
        off = np.log2(lr) + 9 - 0.5 * np.log2(batch / 64)
        rows.append((batch, lr, seed, 2 + 0.05 * off**2 + 0.001 * seed, False))
    columns = ["batch", "lr", "seed", "loss", "diverged"]
    text, _ = batch_tokens.exponent(pandas.DataFrame(rows, columns=pandas.Index(columns)), "batch")
    assert text.startswith("+0.50 ")


@pytest.mark.parametrize("study", ALL)
def test_a_report_without_records_says_so(study, tmp_path):
    with pytest.raises(SystemExit):
        start(study, tmp_path, "--report")


def test_optimizers(tmp_path, capsys):
    assert start(optimizers, tmp_path, "--only", "muon-match-rms") == 0
    capsys.readouterr()
    assert start(optimizers, tmp_path, "--report") == 0
    assert "| muon-match-rms | 32, 64 |" in capsys.readouterr().out


def test_experts(tmp_path, capsys):
    assert start(experts, tmp_path, "--only", "base,none") == 0
    capsys.readouterr()
    assert start(experts, tmp_path, "--report") == 0
    assert "| none | 4, 8 |" in capsys.readouterr().out
