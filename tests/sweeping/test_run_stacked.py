"""`run_stacked` gives the outcomes of `run_alone`, also with divergence, pruning and resuming."""

import numpy as np
import pytest
import torch
from support.stacked_subjects import LENGTH, SUBJECTS, VOCAB, gpt, mlp
from torch import nn

from orderone.nn import GPT
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import run_alone
from orderone.sweeping.stacked import NotStackable, run_stacked
from orderone.sweeping.stacked.capacity import ON_CPU, capacity
from orderone.training import interrupts
from orderone.training.source import Source, read_source


def batch(step: int, seed: int):
    return SUBJECTS["mlp"].batch(torch.Generator().manual_seed(1000 * seed + step))


def tokens(step: int, seed: int):
    return SUBJECTS["gpt"].batch(torch.Generator().manual_seed(1000 * seed + step))


def held(name: str, of) -> Source:
    held_out = [of(99, 7), of(98, 7)]
    return Source(name, of, lambda: held_out)


def transformer(**options):
    return {"build": gpt, "data": held("tokens", tokens), **options}


def job(steps: int = 12, **options) -> Job:
    source = held("numbers", batch)
    return Job(
        **{
            "build": mlp,
            "data": source,
            "steps": steps,
            "base_sizes": {"width": 8},
            "report_every": 3,
        }
        | options
    )


def trials(j: Job, rates=(1e-3, 1e-2), rules=("mup",), seeds=(0, 1), **extra):
    return [
        j.trial({"width": 16, "rule": rule, "optimizer": "adamw", "lr": lr, "seed": seed, **extra})
        for rule in rules
        for lr in rates
        for seed in seeds
    ]


def same(one, other):
    assert {o.key for o in one} == {o.key for o in other}
    by_key = {o.key: o for o in other}
    for o in one:
        p = by_key[o.key]
        assert o.error is None is p.error
        assert (o.diverged_at, o.stopped_at, len(o.losses)) == (
            p.diverged_at,
            p.stopped_at,
            len(p.losses),
        )
        assert np.allclose(o.losses, p.losses, rtol=1e-9, equal_nan=True)
        assert np.allclose(np.array(o.evaluation), np.array(p.evaluation), rtol=1e-9)
        assert o.final == pytest.approx(p.final, rel=1e-9)


@pytest.mark.parametrize(
    "options",
    [
        {},
        transformer(schedule="cosine", warmup=3, clip=0.5, accumulate=2, evaluate_every=4),
        {"together": 3},
    ],
)
def test_outcomes_are_those_of_stand_alone_runs(options):
    j = job(precision="float64", **options)
    chosen = trials(j, rules=("mup", "standard"))
    same(list(run_stacked(j, chosen)), list(run_alone(j, chosen)))


def test_rules_with_other_multipliers_get_separate_programs():
    def tied(width):  # without a gain before the readout that could absorb its factor
        return GPT(vocab=VOCAB, length=LENGTH, width=width, heads=2, depth=1)

    j = job(precision="float64", steps=4, **transformer() | {"build": tied})
    chosen = trials(j, rules=("mup", "standard"), rates=(1e-3, 3e-3, 1e-2), seeds=(0,)) + trials(
        j, seeds=(1,)
    )
    found = list(run_stacked(j, chosen))
    same(found, list(run_alone(j, chosen)))
    factors = {trial.key: str(j.member(trial).plan.multipliers) for trial in chosen}
    assert len(set(factors.values())) == 2  # the tied readout has one by muP
    assert all(o.facts["members"] == list(factors.values()).count(factors[o.key]) for o in found)


def test_a_diverged_member_is_recorded_and_the_others_continue():
    j = job(precision="float64", **transformer())
    chosen = trials(j, rates=(1e-3, 1e9))
    found = {o.key: o for o in run_stacked(j, chosen)}
    calm, wild = ([found[t.key] for t in chosen if t.get("lr") == lr] for lr in (1e-3, 1e9))
    assert all(o.diverged_at is None and len(o.losses) == 12 for o in calm)
    assert wild
    for o in wild:
        assert o.diverged_at is not None
        assert o.final == np.inf
        assert len(o.losses) == o.diverged_at + 1
        assert not np.isfinite(o.losses[-1])
    same(calm, list(run_alone(j, trials(j, rates=(1e-3,)))))


class Exploding(nn.Linear):
    """Layer whose output is NaN once its weights have moved far."""

    def forward(self, input):
        return super().forward(input) + torch.where(self.weight.abs().max() > 5, torch.nan, 0.0)


def explosive(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), Exploding(width, 3))


def test_divergence_is_recorded_with_its_step():
    source = Source(
        "numbers",
        lambda step, seed: SUBJECTS["mlp"].batch(torch.Generator().manual_seed(step + 99 * seed)),
    )
    j = job(build=explosive, data=source, precision="float64", steps=20)
    chosen = trials(j, rates=(1e-3, 1.0, 2.0))
    found = list(run_stacked(j, chosen))
    same(found, list(run_alone(j, chosen)))
    assert {o.status for o in found} == {"done", "diverged"}
    assert all(0 < o.diverged_at < 19 for o in found if o.diverged_at is not None)


def test_a_pruner_stops_members():
    j = job(precision="float64")
    chosen = trials(j)
    stopped = {chosen[1].key, chosen[2].key}

    def report(step, losses):
        return stopped if step == 6 else set()

    found = list(run_stacked(j, chosen, report))
    same(found, list(run_alone(j, chosen, report)))
    assert {o.key for o in found if o.stopped_at == 6} == stopped


def test_an_interrupt_before_the_first_step_reports_no_loss(tmp_path, monkeypatch):
    j = job(precision="float64")
    reports = []
    monkeypatch.setattr(interrupts, "pending", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        list(run_stacked(j, trials(j), lambda *report: reports.append(report) or set(), tmp_path))
    assert reports == []


def test_an_interrupted_stack_is_resumed(tmp_path, monkeypatch):
    j = job(precision="float64", evaluate_every=5)
    chosen = trials(j)
    wanted = list(run_alone(j, chosen))
    calls = iter([False] * 14 + [True] * 99)
    monkeypatch.setattr(interrupts, "pending", lambda: next(calls))
    with pytest.raises(KeyboardInterrupt):
        list(run_stacked(j, chosen, checkpoint=tmp_path))
    (saved,) = tmp_path.glob("*.safetensors")
    monkeypatch.undo()
    built = []
    monkeypatch.setattr("orderone.sweeping.stacked.training.stacked_batches", _counting(built))
    same(list(run_stacked(j, chosen, checkpoint=tmp_path)), wanted)
    assert 0 < built[0] < 12  # not from the beginning
    # if some members have finished, the others take their slices
    same(
        list(run_stacked(j, chosen[1:3], checkpoint=tmp_path)),
        [o for o in wanted if o.key in _keys(chosen[1:3])],
    )
    assert saved.exists()


def _keys(chosen):
    return {trial.key for trial in chosen}


def _counting(steps):
    from orderone.sweeping.stacked.feed import stacked_batches

    def counted(j, source, step, seeds):
        steps.append(step)
        return stacked_batches(j, source, step, seeds)

    return counted


def test_a_checkpoint_that_cannot_be_written_changes_no_loss(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    j = job(precision="float64", checkpoint_seconds=0.0, steps=4)
    with pytest.warns(UserWarning, match=r"stack.*\[checkpoint-not-written\]"):
        found = list(run_stacked(j, trials(j), checkpoint=blocked))
    same(found, list(run_alone(j, trials(j))))


def test_batches_of_different_shapes_are_named():
    source = Source("ragged", lambda step, seed: tuple(x[: 2 + seed] for x in batch(step, seed)))
    with pytest.raises(NotStackable) as caught:
        list(run_stacked(job(data=source), trials(job(data=source))))
    assert caught.value.code == "batch-shapes-differ"


def test_a_task_with_a_stacked_method_is_called_once_per_step():
    asked = []

    class Task:
        name = "task"
        loss = None

        def batch(self, step, seed):
            return batch(step, seed)

        def stacked(self, step, seeds, device):
            asked.append((step, tuple(seeds)))
            return tuple(torch.stack(x) for x in zip(*(batch(step, s) for s in seeds), strict=True))

    j = job(data=read_source(Task()), precision="float64", steps=3)
    found = list(run_stacked(j, trials(j)))
    assert asked == [(0, (0, 1)), (1, (0, 1)), (2, (0, 1))]  # four members, two orders of the data
    same(found, list(run_alone(j, trials(j))))


def test_dropout_is_that_of_stand_alone_runs_whatever_else_is_in_the_stack():
    def build(width):
        return nn.Sequential(nn.Linear(6, width), nn.Dropout(0.5), nn.Linear(width, 3))

    source = Source(
        "numbers", lambda step, seed: SUBJECTS["mlp"].batch(torch.Generator().manual_seed(step))
    )
    j = job(build=build, data=source, steps=2)
    chosen = [
        j.trial({"width": 16, "rule": "mup", "optimizer": "sgd", "lr": 1e-2, "seed": seed})
        for seed in (0, 1, 2)
    ]
    by_key = {outcome.key: outcome for outcome in run_stacked(j, chosen)}
    fewer = {outcome.key: outcome for outcome in run_stacked(j, chosen[1:])}
    for alone in run_alone(j, chosen):
        assert np.allclose(by_key[alone.key].losses, alone.losses, rtol=1e-6)
        if alone.key in fewer:
            assert np.allclose(fewer[alone.key].losses, alone.losses, rtol=1e-6)
    assert len({float(outcome.losses[0]) for outcome in by_key.values()}) == 3


def test_capacity_on_a_cpu_is_bounded():
    assert capacity(torch.device("cpu"), 100, lambda: 0) == ON_CPU
    assert capacity(torch.device("cpu"), 3, lambda: 0) == 3
