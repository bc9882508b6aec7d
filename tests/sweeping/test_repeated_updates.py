"""A resume repeats updates between the last two checkpoints: state that acts late is found."""

import types
import warnings
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from support.sweep_subjects import batch, mlp
from torch import nn
from torch.utils.checkpoint import checkpoint

import orderone as o1
from orderone.core.errors import code_of
from orderone.sweeping.engine import Engine
from orderone.sweeping.job import Job
from orderone.sweeping.stacked import unfinished
from orderone.training import interrupts, resume_check
from orderone.training.source import Source

STEPS = 9
STOP = 6  # updates before the interruption; state acts from the fifth update on


class Late(nn.Module):
    """Model whose factor changes in its fifth pass of training; `count` returns the pass."""

    def __init__(self, width, count):
        super().__init__()
        self.inner = mlp(width)
        self.count: Callable[[], int]
        vars(self)["count"] = types.MethodType(count, self)

    def forward(self, x):
        h = self.inner(x)
        if self.training and self.count() > 4:
            return 2 * h
        return h


class Replacing(nn.Module):
    """Model that replaces a module in its fifth pass; a checkpoint has the count, but no module."""

    def __init__(self, width):
        super().__init__()
        self.inner = mlp(width)
        self.last = nn.Identity()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        if self.training and int(self.calls) == 5:
            self.last = nn.Softsign()
        return self.last(self.inner(x))


class Queued(Late):
    """Model that counts by a queue, whose size no text shows."""

    def __init__(self, width):
        super().__init__(width, lambda model: model.entries.put(0) or model.entries.qsize())
        self.entries = SimpleQueue()


def interrupted(monkeypatch):
    """Let Ctrl-C arrive before the update `STOP` reads its data."""
    stopped = {"at": STOP}

    def data(number, seed):
        if number == stopped["at"]:
            stopped["at"] = -1
            monkeypatch.setattr(interrupts, "pending", lambda: True)
        return batch(number, seed)

    return Source("signs", data)


def train(build, folder, data=None, **options):
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"device": "cpu", "report_every": 1, "checkpoint_seconds": 0.0, "optimizer": optimizer}
    data = data or Source("signs", batch)
    return o1.train(model, data, STEPS, checkpoint=folder, **(given | options))


def codes(caught):
    return {code_of(str(w.message)) for w in caught}


@pytest.mark.parametrize("file", ["run.safetensors", "run"], ids=["file", "folder"])
def test_train_names_state_in_a_file_that_acts_late(tmp_path, monkeypatch, file):
    calls = tmp_path / "calls.txt"
    calls.write_text("")

    def count(model):
        with calls.open("a") as stream:
            stream.write("x")
        return len(calls.read_text())

    with (
        monkeypatch.context() as patch,
        pytest.warns(UserWarning, match="calls.txt") as caught,
        pytest.raises(KeyboardInterrupt),
    ):
        train(lambda: Late(8, count), tmp_path / file, interrupted(patch))
    assert codes(caught) == {"state-may-be-lost"}
    calls.write_text("")  # a new process on another machine has no such file
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(lambda: Late(8, count), tmp_path / file)
    assert codes(caught) == {"resumed-differently", "state-may-be-lost"}


class Freezing(Replacing):
    """Model that stops to train a tensor in the update before it is interrupted."""

    def forward(self, x):
        self.calls += 1
        if self.training and int(self.calls) == STOP:
            next(self.inner.parameters()).requires_grad_(False)
        return self.inner(x)


@pytest.mark.parametrize(
    ("build", "words"),
    [(Replacing, "last was Softsign in training mode"), (Freezing, "inner.0.weight was not tr")],
)
@pytest.mark.parametrize("file", ["run.safetensors", "run"], ids=["file", "folder"])
def test_train_names_a_changed_structure(tmp_path, monkeypatch, build, words, file):
    path = tmp_path / file
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        train(lambda: build(8), path, interrupted(patch))
    with pytest.warns(UserWarning, match=words) as caught:
        train(lambda: build(8), path)
    assert codes(caught) == {"resumed-differently"}


@pytest.mark.parametrize("file", ["run.safetensors", "run"], ids=["file", "folder"])
def test_a_complete_checkpoint_continues_without_a_word(tmp_path, monkeypatch, file, recwarn):
    def build():
        return nn.Sequential(mlp(8), nn.Dropout(0.3), nn.BatchNorm1d(3))

    whole = train(build, None)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        train(build, tmp_path / file, interrupted(patch))
    assert train(build, tmp_path / file).losses.tolist() == whole.losses.tolist()
    assert not recwarn.list


def test_the_second_checkpoint_comes_soon_after_the_first(tmp_path, monkeypatch):
    """Otherwise a training that is killed within a minute could not be tested."""
    path = tmp_path / "run.safetensors"
    ticks = iter([0.0] * 2 + [100.0] * 1000)  # only the first checkpoint is late
    monkeypatch.setattr("orderone.training.loop.time.monotonic", lambda: next(ticks))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        train(lambda: mlp(8), path, interrupted(patch), checkpoint_seconds=60.0)
    assert path.exists()
    assert path.with_name("run.previous.safetensors").exists()


def job_of(build, data=None, **options):
    given = {"base_sizes": {"width": 8}, "name": "net", "checkpoint_seconds": 0.0}
    given |= {"report_every": 1}
    return Job(build, data or Source("signs", batch), steps=STEPS, **(given | options))


def run(job, folder=None, stacked=False):
    trials = [
        job.trial({"width": 8, "optimizer": "adamw", "rule": "mup", "lr": 0.01, "seed": seed})
        for seed in range(2)
    ]
    found = Engine(job, folder, stacked).run(trials)
    return {outcome.key: outcome.losses.tolist() for outcome in found}


@pytest.mark.parametrize("stacked", [False, True], ids=["alone", "stacked"])
@pytest.mark.parametrize("kind", ["replaced", "queue"])
def test_trials_with_state_that_acts_late_start_again(tmp_path, monkeypatch, stacked, kind):
    build = Replacing if kind == "replaced" else Queued
    wanted = run(job_of(build), stacked=stacked)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        run(job_of(build, interrupted(patch)), tmp_path, stacked)
    assert list(tmp_path.glob("*.safetensors"))
    with pytest.warns(UserWarning, match="start again|starts again") as caught:
        found = run(job_of(build), tmp_path, stacked)
    assert codes(caught) == {"resumed-differently"}
    assert found == wanted


# --- hooks ----------------------------------------------------------------------------------------


def hooked_parameter(model):
    def double(p):
        p.grad.mul_(2)

    model[0].weight.register_hook(lambda g: 2 * g)
    model[2].weight.register_post_accumulate_grad_hook(double)


def hooked_optimizer(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def halve(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            group["lr"] = 0.05

    optimizer.register_step_pre_hook(halve)
    return optimizer


@pytest.mark.parametrize("prepare", [hooked_parameter, hooked_optimizer])
def test_hooks_without_state_are_no_state(tmp_path, recwarn, prepare):
    torch.manual_seed(0)
    model = mlp(8)
    optimizer = prepare(model) or torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "run.safetensors"
    o1.train(model, batch, STEPS, optimizer=optimizer, device="cpu", checkpoint=path)
    assert path.exists()
    assert not recwarn.list


def counting_hook(kind):
    """Return a hook with a counter in a variable that it has captured, which acts late."""
    calls = [0]

    def factor():
        calls[0] += 1
        return 2.0 if calls[0] > 4 else 1.0

    if kind == "forward":
        return lambda module, inputs, output: output * factor()
    if kind == "backward":
        return lambda module, inputs, outputs: (inputs[0] * factor(),)
    return lambda gradient: gradient * factor()


def with_counting_hook(kind):
    def build(width):
        model = mlp(width)
        layer = model.get_submodule("2")
        hook: Any = counting_hook(kind)
        if kind == "forward":
            layer.register_forward_hook(hook)
        elif kind == "backward":
            layer.register_full_backward_hook(hook)
        else:
            layer.get_parameter("weight").register_hook(hook)
        return model

    return build


@pytest.mark.parametrize("kind", ["forward", "backward", "gradient"])
def test_trials_with_counting_hooks_are_not_saved(tmp_path, kind):
    with pytest.warns(UserWarning, match="hook") as caught:
        run(job_of(with_counting_hook(kind)), tmp_path)
    assert codes(caught) == {"checkpoint-not-written"}


class Counter:
    """Object that can be called, and counts."""

    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.calls


class Calling(Late):
    def __init__(self, width):
        super().__init__(width, lambda model: model.counter())
        self.counter = Counter()


def test_objects_that_can_be_called_are_compared(tmp_path):
    with pytest.warns(UserWarning, match="counter") as caught:
        train(lambda: Calling(8), tmp_path / "run.safetensors")
    assert codes(caught) == {"state-may-be-lost"}


# --- stacks ---------------------------------------------------------------------------------------


class Recomputed(nn.Module):
    """Model that counts the calls of a block, which a backward pass computes again."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.last = nn.Linear(width, 3)
        self.calls = 0

    def block(self, h):
        self.calls += 1
        return torch.tanh(h) * (1 + 0.1 * (self.calls // 2))

    def forward(self, x):
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=False))


def test_a_block_that_counts_its_calls_is_not_stacked():
    space = {"lr": [0.01], "seed": range(2)}
    settings = {"widths": [8], "base": 4, "data": batch, "steps": STEPS, "device": "cpu"}
    found = o1.sweep(Recomputed, space, progress=False, **settings)
    alone = o1.sweep(Recomputed, space, progress=False, stacked=False, **settings)
    for key, outcome in found.outcomes.items():
        assert outcome.losses.tolist() == alone.outcomes[key].losses.tolist()
        assert "calls is 4 after steps alone, and 2" in str(outcome.facts["not stacked"])


def counting_gradients(width):
    """Return a model whose hook puts another hook on an activation, which counts and acts late."""
    model = mlp(width)
    calls = {"number": 0}

    def scaled(gradient):
        calls["number"] += 1
        return gradient * (2 if calls["number"] > 4 else 1)

    def watch(module, inputs, output):
        if output.requires_grad:
            output.register_hook(scaled)

    model.get_submodule("2").register_forward_hook(watch)
    return model


@pytest.mark.parametrize("steps", [STEPS, 60], ids=["before the steps", "in the first steps"])
def test_a_hook_that_a_stack_does_not_call_is_found_before_it_acts(steps):
    space = {"lr": [0.01], "seed": range(2)}
    settings = {"widths": [8], "base": 4, "data": batch, "steps": steps, "device": "cpu"}
    found = o1.sweep(counting_gradients, space, progress=False, **settings)
    alone = o1.sweep(counting_gradients, space, progress=False, stacked=False, **settings)
    for key, outcome in found.outcomes.items():
        assert outcome.losses.tolist() == alone.outcomes[key].losses.tolist()
        assert code_of(str(outcome.facts["not stacked"])) == "stack-deviates"


COUNTED = {"calls": 0}


class Sharing(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = mlp(width)

    def forward(self, x):
        COUNTED["calls"] += 1
        return self.inner(x) * (1 + 0.01 * COUNTED["calls"])


@pytest.mark.parametrize(("build", "shared"), [(Sharing, True), (mlp, False)])
def test_a_note_names_state_that_trials_share(build, shared):
    space = {"lr": [0.01], "seed": range(2)}
    settings = {"widths": [8], "base": 4, "data": batch, "steps": 3, "device": "cpu"}
    found = o1.sweep(build, space, progress=False, stacked=False, **settings)
    noted = [note for note in found.notes if code_of(note) == "trials-share-state"]
    assert len(noted) == shared
    assert all("COUNTED" in note for note in noted)


# --- sizes ----------------------------------------------------------------------------------------


def test_train_notes_that_a_large_model_is_not_checked(tmp_path, monkeypatch):
    assert not train(lambda: mlp(8), tmp_path / "small.safetensors").notes
    monkeypatch.setattr(resume_check, "LARGEST", 0)
    [note] = train(lambda: mlp(8), tmp_path / "large.safetensors").notes
    assert code_of(note) == "state-not-checked"
    assert not train(lambda: mlp(8), None).notes


def test_a_stack_that_is_too_large_to_save_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(unfinished, "LARGEST", 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(job_of(mlp), tmp_path, stacked=True)
    assert codes(caught) == {"checkpoint-not-written"}
    assert len(caught) == 1
