"""A sweep runs every missing trial once."""

import os
import signal
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refuses
from support.sweep_subjects import Held, batch, changed, mlp, raises_at_16
from torch import nn

import orderone as o1
from orderone.core.errors import code_of
from orderone.sweeping.result import Interrupted, Sweep
from orderone.sweeping.space import log_grid
from orderone.sweeping.sweep import sweep

SPACE: dict[str, Any] = {"lr": [1e-3, 1e-2], "seed": range(2)}
CALL: dict[str, Any] = {
    "widths": [8, 16],
    "data": batch,
    "steps": 6,
    "stacked": False,
    "device": "cpu",
}


def test_a_sweep_is_a_table(tmp_path):
    found = sweep(mlp, SPACE, rule=["sp", "mup"], **CALL)
    frame: Any = found.frame
    assert len(frame) == 16 == found.ran
    assert list(frame) == [
        "width",
        "rule",
        "optimizer",
        "lr",
        "seed",
        "loss",
        "evaluation",
        "diverged",
        "steps",
        "seconds",
        "status",
        "error",
        "key",
    ]
    assert set(frame["status"]) == {"done"}
    curves: Any = found.curves
    assert curves.groupby("key")["step"].max().eq(5).all()
    at_base = frame[frame.width == 8].pivot(index=["lr", "seed"], columns="rule", values="loss")
    assert (at_base["sp"] == at_base["mup"]).all()
    above = frame[frame.width == 16].pivot(index=["lr", "seed"], columns="rule", values="loss")
    assert (above["sp"] != above["mup"]).all()
    best = found.best()
    assert list(zip(best.rule, best.width, best.seeds, strict=True)) == [
        ("mup", 8, 2),
        ("mup", 16, 2),
        ("sp", 8, 2),
        ("sp", 16, 2),
    ]
    means = frame.groupby(["rule", "width", "lr"])["loss"].mean()
    assert best.loss.tolist() == pytest.approx(means.groupby(["rule", "width"]).min().tolist())
    assert "16 trials: 16 done" in str(found)


def test_only_what_is_missing_is_run(tmp_path):
    store = tmp_path / "runs.db"
    first = sweep(mlp, SPACE, store=store, **CALL)
    again = sweep(mlp, SPACE, store=store, **CALL)
    more = sweep(mlp, SPACE | {"seed": range(3)}, store=store, **CALL)
    longer = sweep(mlp, SPACE, store=store, **changed(CALL, steps=7))
    assert [s.ran for s in (first, again, more, longer)] == [8, 0, 4, 8]
    assert again.frame.equals(first.frame)
    assert again.curves.equals(first.curves)
    assert not list(tmp_path.glob("*.checkpoints"))


@pytest.mark.parametrize("stacked", [False, "auto"])
def test_a_seed_that_builds_other_tensors_is_named(stacked):
    def build(width):
        return mlp(width, depth=2 if torch.initial_seed() == 1 else 1)

    found: Any = sweep(
        build, {"lr": 0.1, "seed": range(3)}, **changed(CALL, widths=[8], stacked=stacked)
    )
    assert found.frame.set_index("seed")["status"].tolist() == ["done", "failed", "done"]
    assert code_of(found.notes[0]) == "trial-failed"
    assert "[build-not-repeatable]" in found.notes[0]
    assert "seed 0) and" in found.notes[0]


def test_another_number_of_evaluations_is_another_training(tmp_path):
    call = CALL | {"widths": [8], "data": Held(), "store": tmp_path / "runs.db"}
    sweep(mlp, {"lr": 0.1}, **call)
    more = sweep(mlp, {"lr": 0.1}, **call, evaluate_every=2)
    assert [step for step, _ in next(iter(more.outcomes.values())).evaluation] == [2, 4, 6]


def test_sweeps_in_one_store_are_not_mixed(tmp_path):
    store = tmp_path / "runs.db"
    first = sweep(mlp, SPACE, store=store, **CALL)
    other = sweep(mlp, SPACE, store=store, **changed(CALL, steps=7))
    newest: Any = Sweep.load(store)
    assert newest.frame.equals(other.frame)
    assert newest.best()["seeds"].tolist() == [2, 2]
    name = first.trials[next(iter(first.trials))].job
    [note] = newest.notes
    assert code_of(note) == "several-sweeps-in-store"
    assert "8 trials, steps 6;" in note
    assert f"Sweep.load(store, job={name[:12]!r})" in note
    assert note in " ".join(str(newest).split())
    assert Sweep.load(store, job=name[:12]).frame.equals(first.frame)
    sweep(mlp, SPACE, store=store, **CALL)  # runs nothing, and is the newest now
    assert Sweep.load(store).frame.equals(first.frame)
    with refuses("unknown-name", argument="job") as caught:
        Sweep.load(store, job="x")
    assert name[:12] in str(caught.value)


class IndivisibleError(ValueError):
    """Raised by a build function that accepts only some numbers of heads."""


def test_settings_that_cannot_be_built_are_failed_trials():
    def build(width, heads):
        if width % heads:
            raise IndivisibleError(heads)
        return mlp(width)

    found = sweep(build, {"lr": 0.01, "heads": [1, 3]}, **CALL)
    assert found.frame.groupby("heads")["status"].unique().map(list).to_dict() == {
        1: ["done"],
        3: ["failed"],
    }
    with pytest.raises(IndivisibleError):
        sweep(build, {"lr": 0.01, "heads": [3]}, **CALL)


def test_trials_are_compared_by_the_held_out_loss():
    found = sweep(mlp, {"lr": 0.01}, **changed(CALL, data=Held(), evaluate_every=2))
    outcome = next(iter(found.outcomes.values()))
    assert [step for step, _ in outcome.evaluation] == [2, 4, 6]
    assert (
        outcome.final
        == outcome.evaluation[-1][1]
        == found.frame["evaluation"][0]
        == found.frame["loss"][0]
    )


def test_a_trial_that_raises_fails_alone_and_runs_again(tmp_path):
    store = tmp_path / "runs.db"
    found = sweep(raises_at_16, SPACE, store=store, name="net", inputs=torch.zeros(1, 4), **CALL)
    assert found.frame.groupby("width")["status"].unique().map(list).to_dict() == {
        8: ["done"],
        16: ["failed"],
    }
    (error,) = found.frame["error"].dropna().unique()
    assert "RuntimeError: not at width 16" in error
    assert code_of(found.notes[0]) == "trial-failed"
    assert "not at width 16" in found.notes[0]
    assert found.notes[0] in " ".join(str(found).split())
    assert found.best()["width"].tolist() == [8]
    repaired = sweep(mlp, SPACE, store=store, name="net", inputs=torch.zeros(1, 4), **CALL)
    assert repaired.ran == 4
    assert set(repaired.frame["status"]) == {"done"}


def test_a_full_disk_loses_no_finished_trial(tmp_path, monkeypatch):
    from orderone.sweeping import store as stores

    opened = stores._opened

    def small(path, patience):
        database = opened(path, patience)
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages + 1}")
        return database

    monkeypatch.setattr(stores, "_opened", small)
    with pytest.warns(UserWarning, match=r"is full.*\[results-not-saved\]"):
        found = sweep(mlp, {"lr": 0.01, "seed": range(12)}, store=tmp_path / "runs.db", **CALL)
    assert set(found.frame["status"]) == {"done"}
    assert len(found.frame) == 24
    assert code_of(found.notes[-1]) == "results-not-saved"
    monkeypatch.undo()
    missing = int(found.notes[-1].split()[0])
    again = sweep(mlp, {"lr": 0.01, "seed": range(12)}, store=tmp_path / "runs.db", **CALL)
    assert again.ran == missing
    assert again.frame["loss"].equals(found.frame["loss"])


def test_ctrl_c_saves_finished_trials_and_the_running_one(tmp_path):
    calls = []

    def data(step, seed):
        calls.append(step)
        if calls.count(3) == 3:  # plans, checks and repeated starts only read the first two steps
            os.kill(os.getpid(), signal.SIGINT)
        return batch(step, seed)

    call = CALL | {"data": data, "store": tmp_path / "runs.db", "name": "net"}
    with pytest.raises(Interrupted, match="2 of 8") as caught:
        sweep(mlp, SPACE, **call)
    assert str(tmp_path / "runs.db") in str(caught.value)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert len(caught.value.sweep.frame) == 2
    assert len(list((tmp_path / "runs.db.checkpoints").iterdir())) == 1
    calls[:] = [3] * 100
    rest = sweep(mlp, SPACE, **call)
    assert rest.ran == 6
    # the third trial did not start again; the data are checked by reading the second step twice
    assert calls[100:].count(2) == 5
    assert calls[100:].count(3) == 5
    assert calls[100:].count(5) == 7
    assert rest.frame["loss"].equals(sweep(mlp, SPACE, **CALL).frame["loss"])
    assert not list(tmp_path.glob("*.checkpoints"))


def test_the_random_state_of_the_caller_is_not_changed():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    sweep(mlp, {"lr": 0.01, "dropout": 0.5}, **CALL)
    assert torch.equal(torch.rand(1), expected)


def test_depths_arguments_and_custom_bases():
    found = sweep(
        mlp, {"lr": 0.01, "dropout": [0.0, 0.1]}, depths=[1, 2], **changed(CALL, widths=[8, 16])
    )
    assert len(found.frame) == 8
    at = {"base": 4, "widths": [8, 16]}
    by_number = sweep(mlp, {"lr": 0.01}, **changed(CALL, **at))
    torch.manual_seed(0)
    by_module = sweep(mlp, {"lr": 0.01}, **changed(CALL, **{**at, "base": mlp(4)}))
    assert by_number.frame["loss"].tolist() == by_module.frame["loss"].tolist()
    assert (
        by_number.frame["loss"].tolist() != sweep(mlp, {"lr": 0.01}, **CALL).frame["loss"].tolist()
    )


def test_a_sweep_passes_base_and_build_to_its_transfer_study():
    found = sweep(mlp, {"lr": log_grid(1e-3, 1e-1, 3), "seed": range(2)}, base=4, **CALL)
    study = found.transfer()
    assert study.base == 4
    assert study.build is mlp


class Grows:
    """Returns a larger model at every call."""

    calls = 0

    def __call__(self, width):
        Grows.calls += 1
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2 + Grows.calls))


def refused(changed: dict[str, Any], error: Any) -> Any:
    """Call sweep with changed arguments; assert that it raises before it trains anything."""
    trained = []

    def data(step, seed):
        trained.extend([step] * (step > 0))
        return batch(step, seed)

    call = {"build": mlp, "space": SPACE, **CALL, "data": data} | changed
    with error as caught:
        sweep(**call)
    assert not trained
    return caught


@pytest.mark.parametrize(
    ("changed", "code", "argument", "words"),
    [
        ({"space": {}}, "invalid-argument", "space", "at least one"),
        ({"space": {"lr": 0.1, "headz": [2]}}, "unknown-space-key", "space", "'headz'"),
        ({"space": {"lr": 0.1, "momentum": 0.9}}, "unknown-space-key", "momentum", "adamw"),
        ({"widths": []}, "invalid-argument", "widths", "at least one"),
        ({"data": None}, "training-data-expected", "data", "nothing"),
        ({"data": [1, 2]}, "batch-expected", "data", "got int"),
        ({"data": 3}, "training-data-expected", "data", "got int"),
        ({"build": mlp(8)}, "wrong-type", "build", "a function of the width"),
        ({"build": lambda: None}, "build-arguments", "build", "of width, got"),
        ({"build": lambda width: width}, "wrong-type", "build", "got int"),
        ({"widths": None}, "build-arguments", "build", "'width'"),
        ({"build": lambda w, heads: mlp(w)}, "build-arguments", "build", "'heads'"),
        ({"build": lambda width, lr: mlp(width)}, "build-arguments", "build", "leave the argument"),
        ({"build": lambda width, *, heads: mlp(width)}, "build-arguments", "build", "'heads'"),
        ({"data": lambda step, seed: None}, "batch-expected", "data", "step 0, got NoneType"),
        ({"store": 5}, "wrong-type", "store", "runs.db"),
        ({"build": Grows()}, "build-not-repeatable", "build", "2.weight is of shape"),
        ({"rule": "mupp"}, "unknown-name", "rule", "'mup'?"),
        ({"schedule": "cosin"}, "unknown-name", "schedule", "'cosine'"),
        ({"warmup": 7}, "invalid-argument", "warmup", "at most steps = 6"),
        ({"precision": "half"}, "unknown-name", "precision", "float16"),
        ({"executor": "cloud"}, "unknown-name", "executor", "processes"),
        ({"workers": 3}, "invalid-argument", "workers", 'executor="processes"'),
        ({"address": "auto"}, "invalid-argument", "address", 'executor="ray"'),
        ({"sampler": "bayes"}, "unknown-name", "sampler", "random"),
        ({"sampler": "random"}, "invalid-argument", "trials", "sampler random"),
        ({"trials": 5}, "invalid-argument", "trials", "grid"),
        ({"stacked": "yes"}, "invalid-argument", "stacked", "'yes'"),
        ({"device": "tpu9"}, "invalid-argument", "device", "cpu or cuda"),
        ({"loss": 3}, "wrong-type", "loss", "a function"),
        ({"gague": "unit"}, "unknown-name", None, "'gauge'?"),
        ({"pruner": "medium"}, "unknown-name", "pruner", "'median'?"),
        ({"optimizer": "adamm"}, "unknown-name", "optimizer", "'adam'?"),
    ],
    ids=lambda value: next(iter(value), "nothing") if isinstance(value, dict) else "",
)
def test_wrong_input_is_named_before_anything_is_trained(changed, code, argument, words):
    caught = refused(changed, refuses(code, argument=argument))
    assert words in str(caught.value)


def test_a_missing_argument_is_not_taken_for_a_size():
    """The sweep has widths: to pass them again would not help."""
    with refuses("build-arguments", argument="build") as caught:
        o1.sweep(lambda width, heads: mlp(width), {"lr": [0.1]}, widths=[8], data=[])
    assert "widths" not in str(caught.value)
    with refuses("build-arguments", argument="build") as caught:
        o1.sweep(lambda size: mlp(size), {"lr": [0.1]}, data=[])
    assert "widths" in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "argument"),
    [
        ({"space": {"lr": [-1.0]}}, "lr"),
        ({"space": {"lr": [nan]}}, "lr"),
        ({"space": {"lr": [inf]}}, "lr"),
        ({"widths": 3.5}, "widths"),
        ({"steps": 0}, "steps"),
        ({"steps": None}, "steps"),
        ({"clip": 0}, "clip"),
        ({"together": 0}, "together"),
        ({"base": -1}, "base"),
    ],
    ids=lambda value: next(iter(value), "nothing") if isinstance(value, dict) else "",
)
def test_wrong_numbers_are_named_before_anything_is_trained(changed, argument):
    refused(changed, refuses("invalid-argument", argument=argument))


def test_an_unknown_key_of_the_space_lists_the_accepted_ones():
    def build(width, heads):
        return mlp(width)

    with refuses("unknown-space-key", argument="space") as caught:
        sweep(build, {"lr": 0.1, "headz": [2]}, **CALL)
    for name in ("'headz'", "weight_decay", "data_seed", "heads)"):
        assert name in str(caught.value)


def test_a_wide_table_lists_common_settings_once():
    """The printed text fits 80 columns."""
    arguments = {f"argument_number_{k}": 0 for k in range(6)}

    def build(width, **_):
        return mlp(width)

    found = sweep(build, {"lr": 0.01, **arguments}, **CALL)
    lines = str(found).splitlines()
    assert max(len(line) for line in lines) <= 80
    text = " ".join(" ".join(lines).split())
    for name in arguments:
        assert text.count(f"{name} 0") == 1


def test_curves_are_those_of_the_outcomes():
    found = sweep(mlp, {"lr": 0.01}, **CALL)
    for key, rows in found.curves.groupby("key"):
        np.testing.assert_array_equal(rows["loss"], found.outcomes[str(key)].losses)
