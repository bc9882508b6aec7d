"""A trial equals a plain torch training loop, and can be resumed from any checkpoint."""

import os
import signal
from math import inf

import numpy as np
import pytest
import torch
from support.errors import refuses
from support.sweep_subjects import Held, batch, mlp
from torch import nn

from orderone import plan
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import prepare, run_alone
from orderone.training import checkpoint as checkpoints
from orderone.training import interrupts
from orderone.training.outcome import Outcome
from orderone.training.source import read_source

STEPS = 12


def job(**changed) -> Job:
    settings = {
        "build": mlp,
        "data": read_source(batch),
        "steps": STEPS,
        "base_sizes": {"width": 8},
        "report_every": 4,
    }
    return Job(**(settings | changed))


def run(j: Job, settings: dict, report=None, checkpoint=None) -> Outcome:
    [outcome] = run_alone(j, [j.trial(settings)], report, checkpoint)
    assert outcome.error is None, outcome.error
    return outcome


@pytest.mark.parametrize("rule", ["sp", "mup"])
def test_a_trial_equals_a_plain_training_loop(rule):
    """The loop is written out here with the public plan."""
    found = run(
        job(clip=0.5, accumulate=2, schedule="cosine", warmup=3),
        {"width": 16, "rule": rule, "lr": 0.01, "seed": 4},
    )
    torch.manual_seed(0)
    base = mlp(8)
    torch.manual_seed(4)
    model = mlp(16)
    made = plan(model, base=base, rule=rule, lr=0.01)
    made.apply()
    optimizer = made.optimizer(fused=True)
    factor = [(t + 1) / 3 if t < 3 else (1 + np.cos(np.pi * (t - 3) / 9)) / 2 for t in range(STEPS)]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: factor[min(t, STEPS - 1)])
    expected = []
    for step in range(STEPS):
        losses = [
            nn.functional.cross_entropy(model(x), y)
            for x, y in (batch(2 * step, 4), batch(2 * step + 1, 4))
        ]
        optimizer.zero_grad()
        (sum(losses) / 2).backward()  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        expected.append(sum(float(loss.detach()) for loss in losses) / 2)
    np.testing.assert_allclose(found.losses, expected, rtol=1e-6)
    assert found.final == pytest.approx(expected[-1], rel=1e-6)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adafactor", "muon", "lion"])
def test_a_checkpoint_in_the_middle_changes_no_bit(tmp_path, optimizer):
    """With dropout, so that the random state must be restored too."""
    settings = {"width": 16, "optimizer": optimizer, "lr": 0.01, "dropout": 0.3, "seed": 1}
    j = job(data=read_source(Held()), evaluate_every=3)
    whole = run(j, settings)
    half, checkpoint = prepare(j, j.trial(settings), None, tmp_path)
    assert checkpoint is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for _ in range(7):
            half.update()
            half.evaluate_if_due()
        checkpoint.save(half)
    resumed = run(j, settings, checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.losses, whole.losses)
    assert resumed.evaluation == whole.evaluation
    assert resumed.final == whole.final == whole.evaluation[-1][1]


def test_a_signal_saves_a_checkpoint_and_stops(tmp_path):
    j = job()
    trial = j.trial({"width": 16, "lr": 0.01})

    def ask(step, losses):
        os.kill(os.getpid(), signal.SIGTERM)
        return set()

    with interrupts.deferred(), pytest.raises(KeyboardInterrupt):
        list(run_alone(j, [trial], ask, tmp_path))
    record = checkpoints.header(tmp_path / f"{trial.key}.safetensors")
    assert record is not None
    assert len(record["losses"]) == 4
    [resumed] = run_alone(j, [trial], None, tmp_path)
    np.testing.assert_array_equal(resumed.losses, run(j, dict(trial.settings)).losses)


@pytest.mark.parametrize(
    "damage", [b"", b"\x00" * 100, b"\xff" * 5000], ids=["empty", "zeros", "noise"]
)
def test_a_damaged_checkpoint_is_ignored(tmp_path, damage):
    j = job()
    trial = j.trial({"width": 16, "lr": 0.01})
    (tmp_path / f"{trial.key}.safetensors").write_bytes(damage)
    with pytest.warns(UserWarning, match=r"starts again \[checkpoint-damaged\]"):
        [found] = run_alone(j, [trial], None, tmp_path)
    assert found.status == "done"


def test_a_checkpoint_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match=r"No space left.*\[checkpoint-not-written\]") as caught:
        found = run(job(checkpoint_seconds=0.0), {"width": 16, "lr": 0.01}, checkpoint=tmp_path)
    assert len(caught) == 1
    assert found.status == "done"
    assert not list(tmp_path.iterdir())


def test_divergence_is_recorded_where_it_happens():
    def exploding(step, seed):
        x, y = batch(step, seed)
        return (x * (inf if step == 5 else 1)), y

    found = run(job(data=read_source(exploding)), {"width": 16, "lr": 0.01})
    assert (found.status, found.diverged_at, len(found.losses), found.final) == (
        "diverged",
        5,
        6,
        inf,
    )
    assert np.isfinite(found.losses[:5]).all()


def test_a_pruner_stops_a_trial():
    seen = []

    def report(step, losses):
        seen.append((step, losses))
        return set(losses) if step == 8 else set()

    found = run(job(), {"width": 16, "lr": 0.01}, report)
    assert (found.status, found.stopped_at, len(found.losses)) == ("stopped", 8, 8)
    assert [step for step, _ in seen] == [4, 8]
    assert seen[0][1][found.key] == pytest.approx(np.mean(found.losses[:4]), rel=1e-6)


def test_precisions_agree_up_to_rounding():
    found = {
        p: run(job(precision=p), {"width": 16, "lr": 0.01}).losses
        for p in ("float64", "float32", "bfloat16")
    }
    assert found["float64"].dtype == np.float64
    np.testing.assert_allclose(found["float32"], found["float64"], rtol=1e-4)
    np.testing.assert_allclose(found["bfloat16"], found["float64"], rtol=5e-2)
    assert not np.array_equal(found["bfloat16"], found["float32"])


def test_settings_reach_the_model_and_the_optimizer():
    j = job()
    plain = j.member(j.trial({"width": 16, "lr": 0.01}))
    scaled = j.member(
        j.trial({"width": 16, "lr": 0.01, "init_scale": 2.0, "beta1": 0.5, "eps": 1e-3})
    )
    torch.testing.assert_close(
        scaled.model.state_dict()["0.weight"], 2 * plain.model.state_dict()["0.weight"]
    )
    torch.testing.assert_close(
        scaled.model.state_dict()["0.bias"], plain.model.state_dict()["0.bias"]
    )
    assert scaled.options == {"betas": (0.5, 0.999)}
    assert len(j.member(j.trial({"width": 16, "depth": 2})).plan.rows) == len(plain.plan.rows) + 2
    assert scaled.plan["0.weight"].eps != plain.plan["0.weight"].eps
    with refuses("unknown-space-key", argument="momentum") as caught:
        j.member(j.trial({"width": 16, "momentum": 0.9}))
    assert "sgd or muon" in str(caught.value)


def test_members_of_all_seeds_share_the_plan_of_the_base():
    """A cached plan makes the same member as a new plan."""
    j = job()
    for seed in (1, 2):
        member = j.member(j.trial({"width": 32, "lr": 0.01, "seed": seed}))
        torch.manual_seed(0)
        base = mlp(8)
        torch.manual_seed(seed)
        model = mlp(32)
        plan(model, base=base, lr=0.01).apply()
        for one, other in zip(member.model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(one, other)
