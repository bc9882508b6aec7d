"""Pieces of a study: the cost comes first, only what is missing runs, and time limits hold."""

import json
import math
import os
import signal

import pandas
import pytest
import torch
from torch import nn

from studies.pieces import Budget, Piece, Records, chosen, run_pieces


def build(width):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


def batch(step, seed):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * seed + step))
    return x, x[:, :2].argmax(1)


def piece(name="one", *, rates=(1e-3, 1e-2), data=lambda: batch, steps=3, seconds=1.0):
    return Piece(
        name,
        build,
        {"lr": rates, "seed": range(2)},
        data,
        seconds,
        {"widths": [8, 16], "steps": steps},
        {"architecture": "mlp"},
    )


def run(pieces, folder, minutes=math.inf):
    store = str(folder / "store.db")
    return run_pieces(pieces, store, Records(folder), Budget.of_minutes(minutes), "cpu")


def test_records_have_settings_versions_and_device(tmp_path, capsys):
    assert run([piece()], tmp_path)
    assert "estimate for one H200: 0.0 minutes" in capsys.readouterr().out
    frame = Records(tmp_path).read()
    assert len(frame) == piece().trials == 8
    assert set(frame["architecture"]) == {"mlp"}
    assert set(frame["seed"]) == {0, 1}
    facts = json.loads((tmp_path / "records.json").read_text())["one"]
    assert facts["device"] == "CPU"
    assert facts["versions"]["torch"] == torch.__version__


def test_finished_pieces_are_not_run_again(tmp_path):
    assert run([piece()], tmp_path)
    before = (tmp_path / "records.csv").read_text()
    (tmp_path / "store.db").unlink()  # the records alone say that the piece is finished

    def unused():
        raise AssertionError("the data of a finished piece is not needed")

    assert run([piece(data=unused), piece("two")], tmp_path)
    frame = Records(tmp_path).read()
    assert frame["piece"].value_counts().to_dict() == {"one": 8, "two": 8}
    assert (tmp_path / "records.csv").read_text().startswith(before)


def test_a_piece_that_does_not_fit_is_left_out(tmp_path):
    assert not run([piece("long", seconds=1e4), piece("short")], tmp_path, minutes=5)
    assert set(Records(tmp_path).read()["piece"]) == {"short"}


def test_a_piece_that_fails_does_not_stop_the_others(tmp_path, capsys):
    def broken():
        raise RuntimeError("no such file")

    assert not run([piece("broken", data=broken), piece("healthy")], tmp_path)
    assert "broken: FAILED" in capsys.readouterr().out
    assert set(Records(tmp_path).read()["piece"]) == {"healthy"}


def test_a_stopped_piece_continues_from_its_store(tmp_path):
    stopped = []

    def stops_once(step, seed):
        if step == 2 and seed == 1 and not stopped:
            stopped.append(step)
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(step, seed)

    first = piece(data=lambda: stops_once)
    assert not run([first], tmp_path)
    assert not (tmp_path / "records.csv").exists()
    assert run([first], tmp_path)
    reference = tmp_path / "reference"
    reference.mkdir()
    assert run([piece()], reference)
    columns = ["width", "lr", "seed", "loss"]
    resumed = Records(tmp_path).read()[columns]
    assert resumed.equals(Records(reference).read()[columns])


def test_a_long_training_alone_in_its_stack_continues_where_it_stopped(tmp_path):
    """As the largest size of the ladder: it starts in a command that is too short for it."""
    steps: list[int] = []

    def stops_once(step, seed):
        steps.append(step)
        if step == 30 and steps.count(30) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return batch(step, seed)

    options = {"widths": [8], "steps": 40, "stacked": True}
    space = {"lr": [1e-3], "seed": [0]}
    long = Piece("long", build, space, lambda: stops_once, 1e4, options, continues=True)
    assert not run([long], tmp_path, minutes=60)
    assert max(steps) >= 30
    steps.clear()
    assert run([long], tmp_path, minutes=60)
    assert len([step for step in steps if step < 30]) <= 4  # those that prove the checkpoint
    reference = tmp_path / "reference"
    reference.mkdir()
    whole = Piece("long", build, space, lambda: batch, 1.0, options, keeps_curves=True)
    assert run([whole], reference)
    assert Records(tmp_path).read()["loss"].equals(Records(reference).read()["loss"])
    curve = pandas.read_csv(Records(reference).curves)
    assert [name for name in curve.columns if name.startswith("w")] == [f"w{k}" for k in range(40)]


def test_the_limit_stops_a_piece_that_takes_longer_than_its_estimate(tmp_path, monkeypatch):
    monkeypatch.setattr("studies.pieces.SAVING_SECONDS", 0.0)
    endless = piece(steps=10**7, seconds=0.1)
    assert not run([endless], tmp_path, minutes=0.5 / 60)
    assert Records(tmp_path).read().empty


def test_pieces_are_chosen_by_the_beginnings_of_their_names():
    pieces = [piece("llama-128"), piece("llama-256"), piece("vit-128")]
    names = [p.name for p in chosen(pieces, "vit, llama-2,llama")]
    assert names == ["vit-128", "llama-256", "llama-128"]
    assert chosen(pieces, "") == pieces
    with pytest.raises(SystemExit):
        chosen(pieces, "vit,gpt")
