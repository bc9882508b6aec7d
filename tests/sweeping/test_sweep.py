"""A sweep runs what is missing, once."""

import os
import signal
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from support.sweep_subjects import Held, batch, changed, mlp, raises_at_16
from torch import nn

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
def test_a_seed_with_other_tensors_is_named(stacked):
    def build(width):
        return mlp(width, depth=2 if torch.initial_seed() == 1 else 1)

    found: Any = sweep(
        build, {"lr": 0.1, "seed": range(3)}, **changed(CALL, widths=[8], stacked=stacked)
    )
    assert found.frame.set_index("seed")["status"].tolist() == ["done", "failed", "done"]
    assert "build: expected the same tensors" in found.notes[0]
    assert "seed 0) and" in found.notes[0]


def test_asking_for_evaluations_is_asking_for_another_training(tmp_path):
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
    assert newest.notes == [
        f"another sweep is here too: 8 trials, steps 6; Sweep.load(store, job={name[:12]!r})"
        " reads it"
    ]
    assert newest.notes[0] in str(newest)
    assert Sweep.load(store, job=name[:12]).frame.equals(first.frame)
    sweep(mlp, SPACE, store=store, **CALL)  # runs nothing, and is the newest now
    assert Sweep.load(store).frame.equals(first.frame)
    with pytest.raises(
        ValueError, match=f"job: expected the beginning of one of those in .*{name[:12]}.*, got 'x'"
    ):
        Sweep.load(store, job="x")


def test_settings_that_cannot_be_built_are_failed_trials():
    def build(width, heads):
        if width % heads:
            raise ValueError(f"{heads} heads do not divide {width}")
        return mlp(width)

    found = sweep(build, {"lr": 0.01, "heads": [1, 3]}, **CALL)
    assert found.frame.groupby("heads")["status"].unique().map(list).to_dict() == {
        1: ["done"],
        3: ["failed"],
    }
    with pytest.raises(ValueError, match="3 heads do not divide 8"):
        sweep(build, {"lr": 0.01, "heads": [3]}, **CALL)


def test_the_held_out_loss_is_what_counts():
    found = sweep(mlp, {"lr": 0.01}, **changed(CALL, data=Held(), evaluate_every=2))
    outcome = next(iter(found.outcomes.values()))
    assert [step for step, _ in outcome.evaluation] == [2, 4, 6]
    assert (
        outcome.final
        == outcome.evaluation[-1][1]
        == found.frame["evaluation"][0]
        == found.frame["loss"][0]
    )


def test_a_trial_that_raises_costs_itself_and_is_tried_again(tmp_path):
    store = tmp_path / "runs.db"
    found = sweep(raises_at_16, SPACE, store=store, name="net", inputs=torch.zeros(1, 4), **CALL)
    assert found.frame.groupby("width")["status"].unique().map(list).to_dict() == {
        8: ["done"],
        16: ["failed"],
    }
    assert found.frame["error"].dropna().unique().tolist() == ["RuntimeError: not at width 16"]
    assert "not at width 16" in str(found)
    assert found.best()["width"].tolist() == [8]
    repaired = sweep(mlp, SPACE, store=store, name="net", inputs=torch.zeros(1, 4), **CALL)
    assert repaired.ran == 4
    assert set(repaired.frame["status"]) == {"done"}


def test_a_full_disk_costs_nothing_that_was_trained(tmp_path, monkeypatch):
    from orderone.sweeping import store as stores

    opened = stores._opened

    def small(path, patience):
        database = opened(path, patience)
        pages = database.execute("PRAGMA page_count").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {pages + 1}")
        return database

    monkeypatch.setattr(stores, "_opened", small)
    with pytest.warns(UserWarning, match="database or disk is full"):
        found = sweep(mlp, {"lr": 0.01, "seed": range(12)}, store=tmp_path / "runs.db", **CALL)
    assert set(found.frame["status"]) == {"done"}
    assert len(found.frame) == 24
    assert "are not in" in str(found)
    monkeypatch.undo()
    missing = int(found.notes[-1].split()[0])
    again = sweep(mlp, {"lr": 0.01, "seed": range(12)}, store=tmp_path / "runs.db", **CALL)
    assert again.ran == missing
    assert again.frame["loss"].equals(found.frame["loss"])


def test_ctrl_c_keeps_what_is_done_and_goes_on_from_the_half(tmp_path):
    calls = []

    def data(step, seed):
        calls.append(step)
        if len(calls) == 15:
            os.kill(os.getpid(), signal.SIGINT)
        return batch(step, seed)

    call = CALL | {"data": data, "store": tmp_path / "runs.db", "name": "net"}
    with pytest.raises(
        Interrupted, match="8 trials: 2 done, 6 not run; the same call goes on"
    ) as caught:
        sweep(mlp, SPACE, **call)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert len(caught.value.sweep.frame) == 2
    assert len(list((tmp_path / "runs.db.checkpoints").iterdir())) == 1
    calls[:] = [0] * 100
    rest = sweep(mlp, SPACE, **call)
    assert rest.ran == 6
    assert (
        len(calls[100:]) < 6 * 6 + 8
    )  # the third trial did not begin anew (plans and checks look at step 0)
    assert rest.frame["loss"].equals(sweep(mlp, SPACE, **CALL).frame["loss"])
    assert not list(tmp_path.glob("*.checkpoints"))


def test_nothing_of_the_callers_random_state_is_changed():
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


def test_it_leads_to_the_transfer_study():
    found = sweep(mlp, {"lr": log_grid(1e-3, 1e-1, 3), "seed": range(2)}, base=4, **CALL)
    study = found.transfer()
    assert study.base == 4
    assert study.build is mlp


class Grows:
    """Another model at every call."""

    calls = 0

    def __call__(self, width):
        Grows.calls += 1
        return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2 + Grows.calls))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"space": {}}, "space: expected at least one"),
        ({"space": {"lr": [-1.0]}}, "lr: expected a finite number above 0; got -1.0"),
        ({"space": {"lr": [nan]}}, "lr: expected a finite number above 0; got nan"),
        ({"space": {"lr": [inf]}}, "lr: expected a finite number"),
        (
            {"space": {"lr": 0.1, "headz": [2]}},
            "'headz' is no setting of a trial and no argument of build, which takes width",
        ),
        ({"space": {"lr": 0.1, "momentum": 0.9}}, "momentum: adamw has none"),
        ({"widths": []}, "widths: expected at least one"),
        ({"widths": 3.5}, "widths: expected a whole number"),
        ({"steps": 0}, "steps: expected a whole number, 1 or more; got 0"),
        ({"steps": None}, "steps: expected a whole number"),
        ({"data": None}, "data: expected a task"),
        ({"data": [1, 2]}, "data: expected a task.*got list"),
        ({"build": mlp(8)}, "build: expected a function of the width"),
        ({"build": lambda: None}, r"build: expected a function of width, got \(\)"),
        (
            {"build": lambda width: width},
            "build: expected a function that returns an nn.Module, got int",
        ),
        ({"widths": None}, r"build: it needs width, and nothing gives it; expected widths=\[...\]"),
        ({"build": lambda w, heads: mlp(w)}, "build: it needs heads, and nothing gives it"),
        (
            {"build": lambda width, *, heads: mlp(width)},
            "build: it needs heads, and nothing gives it",
        ),
        ({"data": lambda step, seed: None}, "data: expected a batch .* for step 0, got NoneType"),
        ({"store": 5}, "store: expected the path of a file"),
        ({"build": Grows()}, r"build: expected the same tensors.*2.weight is of shape"),
        ({"rule": "mupp"}, "did you mean 'mup'"),
        ({"optimizer": "adamm"}, "unknown optimizer"),
        ({"schedule": "cosin"}, "unknown schedule"),
        ({"warmup": 7}, "warmup: expected at most the 6 steps"),
        ({"clip": 0}, "clip: expected a finite number above 0"),
        ({"precision": "float16"}, "unknown precision"),
        ({"executor": "cloud"}, "unknown executor"),
        ({"workers": 3}, 'workers: one process is one worker; say executor="processes"'),
        ({"address": "auto"}, 'address: belongs to executor="ray"'),
        ({"sampler": "bayes"}, "unknown sampler"),
        ({"sampler": "random"}, "trials: expected how many points"),
        ({"trials": 5}, "trials: a grid has its own number"),
        ({"stacked": "yes"}, "stacked: expected True, False"),
        ({"device": "tpu9"}, "device: expected cpu or cuda"),
        ({"together": 0}, "together: expected a whole number"),
        ({"loss": 3}, "loss: expected a function"),
        ({"gague": "unit"}, "unknown option of sweep or plan: .* did you mean 'gauge'"),
        ({"base": -1}, "base: expected a whole number"),
        ({"pruner": "medium"}, "did you mean 'median'"),
    ],
    ids=lambda given: next(iter(given), "nothing") if isinstance(given, dict) else "",
)
def test_bad_input_is_told_before_anything_is_trained(changed, message):
    trained = []

    def data(step, seed):
        trained.extend([step] * (step > 0))
        return batch(step, seed)

    call = {"build": mlp, "space": SPACE, **CALL, "data": data} | changed
    with pytest.raises(ValueError, match=message):
        sweep(**call)
    assert not trained


def test_curves_are_those_of_the_outcomes():
    found = sweep(mlp, {"lr": 0.01}, **CALL)
    for key, rows in found.curves.groupby("key"):
        np.testing.assert_array_equal(rows["loss"], found.outcomes[str(key)].losses)
