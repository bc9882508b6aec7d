"""Every study runs at a tiny size on a CPU, resumes, and prints its tables."""

import itertools
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

import orderone as o1
from studies.architectures import run as architectures
from studies.batch_tokens import run as batch_tokens
from studies.depth import run as depth
from studies.experts import run as experts
from studies.ladder import run as ladder
from studies.optimizers import run as optimizers
from studies.papers import run as papers
from studies.pieces import Records
from studies.rank import run as rank

ALL = [architectures, batch_tokens, depth, experts, ladder, optimizers, rank]


def start(study, folder, *options):
    return study.main(["--tiny", "--device", "cpu", "--records", str(folder), *options])


def table(text):
    """Return the lines of a printed table without its head."""
    return [line for line in text.splitlines() if line.startswith("| ")][2:]


def test_architectures(tmp_path, capsys):
    assert start(architectures, tmp_path, "--list", "--only", "llama") == 1
    assert start(architectures, tmp_path, "--only", "llama") == 0
    frame = Records(tmp_path).read()
    assert set(frame["piece"]) == {"llama-mup-32", "llama-mup-64", "llama-standard-64"}
    assert start(architectures, tmp_path, "--list", "--only", "llama") == 0
    capsys.readouterr()
    assert start(architectures, tmp_path, "--report", "--figure", str(tmp_path / "drift.png")) == 0
    lines = table(capsys.readouterr().out)
    assert [line.split(" | ")[1] for line in lines] == ["mup", "standard"]
    assert (tmp_path / "drift.png").stat().st_size > 5000


@pytest.mark.slow
@pytest.mark.parametrize("study", ALL)
def test_all_pieces(study, tmp_path, capsys):
    assert start(study, tmp_path) == 0
    capsys.readouterr()
    assert start(study, tmp_path, "--report") == 0
    assert len(capsys.readouterr().out.splitlines()) > 3


def test_depth(tmp_path, capsys):
    assert start(depth, tmp_path, "--only", "adamw-base,adamw-completep") == 0
    capsys.readouterr()
    assert start(depth, tmp_path, "--report") == 0
    lines = table(capsys.readouterr().out)
    assert [line.split(" | ")[1] for line in lines] == ["completep"]


def test_batch_and_tokens(tmp_path, capsys):
    assert start(batch_tokens, tmp_path, "--only", "timescale-128") == 0
    capsys.readouterr()
    assert start(batch_tokens, tmp_path, "--report") == 0
    lines = table(capsys.readouterr().out)
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


def test_rank(tmp_path, capsys):
    assert start(rank, tmp_path, "--only", "base,mup") == 0
    capsys.readouterr()
    assert start(rank, tmp_path, "--report") == 0
    assert "| mup | 2, 4 |" in capsys.readouterr().out


def test_only_the_adapters_are_trained_and_the_rule_divides_the_rate_of_b_by_the_rank():
    setting = rank.Setting(rank.TINY, "cpu", Path("data"), Path("unused"))
    small, large = (rank.with_adapters(setting.plain(32), r) for r in (2, 16))
    batch = {"input_ids": torch.zeros(1, 8, dtype=torch.long)}
    plan = o1.plan(large, base=small, lr=1.0, inputs=batch)
    adapters = [row for row in plan.rows if row.name.endswith((".A.weight", ".B.weight"))]
    trained = {row.name: row.lr for row in adapters}
    assert len(trained) == 2 * len(rank.PARTS)
    assert {name for name, p in large.named_parameters() if p.requires_grad} == set(trained)
    assert {rate for name, rate in trained.items() if name.endswith("A.weight")} == {1.0}
    rates = [rate for name, rate in trained.items() if name.endswith("B.weight")]
    assert rates == pytest.approx([2 / 16] * len(rank.PARTS))


def test_papers(tmp_path, capsys):
    """Parts are packed, and not measured again; nothing begins after the limit."""
    options = ["--tiny", "--records", str(tmp_path), "--store", str(tmp_path / "work")]
    one = ["--only", "s2-parameters"]
    assert papers.main([*options, *one, "--minutes", "0"]) == 1
    assert papers.main([*options, *one]) == 0
    assert "part 1 of 1" in capsys.readouterr().out
    options[-1] = str(tmp_path / "another machine")
    assert papers.main([*options, *one]) == 0
    assert "part 1" not in capsys.readouterr().out
    assert papers.main([*options, "--report"]) == 0
    assert "| s2-parameters | holds |" in capsys.readouterr().out


@pytest.mark.parametrize("name", papers.NAMES)
def test_experiments_of_the_papers_have_their_scale(name):
    assert "paper" in papers.EXPERIMENTS[name].scales
