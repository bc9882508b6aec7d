"""A checkpoint carries all state of a training, survives damage, and says what it cannot hold."""

import errno
import os
import random
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from support.errors import refuses
from support.sweep_subjects import batch, mlp
from torch import nn

import orderone as o1
from orderone.core.errors import code_of
from orderone.sweeping.engine import Engine
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import run_alone
from orderone.sweeping.stacked.resume_check import state_lost_by_checkpoints
from orderone.training import checkpoint as checkpoints
from orderone.training import interrupts
from orderone.training.source import Source

STEPS = 8


class Drawing(nn.Module):
    """Model that draws from torch and, if `outside`, from numpy, and has a state of its own.

    It does not draw from `random`, which the type checks of the tests draw from.
    """

    def __init__(self, width, outside=True):
        super().__init__()
        self.inner = mlp(width)
        self.turn = 0
        self.outside = outside

    def forward(self, x):
        if self.training:
            self.turn += 1
            if self.outside:
                x = x * (1 + 0.1 * float(np.random.rand()))
            x = x + 0.1 * torch.rand(())
        return self.inner(x) * (1 + 0.5 * (self.turn % 3))


class Saving(Drawing):
    def get_extra_state(self):
        return {"turn": self.turn, "pair": (1, 2.0)}

    def set_extra_state(self, state):
        assert state["pair"] == (1, 2.0)
        self.turn = state["turn"]


def interrupted_at(monkeypatch, step):
    """Let Ctrl-C arrive before the update `step` reads its data."""
    stopped = {"at": step}

    def data(number, seed):
        if number == stopped["at"]:
            stopped["at"] = -1
            monkeypatch.setattr(interrupts, "pending", lambda: True)
        return batch(number, seed)

    return data


def train(build, tmp_path, data=batch, **options):
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = tmp_path / "run.safetensors"
    given = {"optimizer": optimizer, "device": "cpu", "checkpoint": path, "report_every": 1}
    return o1.train(model, data, STEPS, **(given | options))


def test_train_resumes_with_extra_state_and_all_generators(tmp_path, monkeypatch):
    whole = train(lambda: Saving(8), tmp_path, checkpoint=None)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        train(lambda: Saving(8), tmp_path, Source("signs", interrupted_at(patch, 4)))
    header = checkpoints.header(tmp_path / "run.safetensors")
    assert header is not None
    assert 0 < len(header["losses"]) < STEPS
    resumed = train(lambda: Saving(8), tmp_path, Source("signs", batch))
    assert resumed.losses.tolist() == whole.losses.tolist()


def test_train_names_state_that_a_checkpoint_would_lose(tmp_path):
    with refuses("state-not-saved", argument="checkpoint") as caught:
        train(lambda: Drawing(8), tmp_path)
    assert "turn" in str(caught.value)
    assert not (tmp_path / "run.safetensors").exists()


def job_of(build, data=batch, **options):
    source = Source("signs", data)
    given = {"base_sizes": {"width": 8}, "name": "net", "checkpoint_seconds": 0.0}
    return Job(build, source, steps=STEPS, **(given | options))


def trials_of(job, seeds=2):
    return [
        job.trial({"width": 8, "optimizer": "adamw", "rule": "mup", "lr": 0.01, "seed": seed})
        for seed in range(seeds)
    ]


@dataclass(frozen=True)
class Way:
    """One way to train trials; `outside` says whether the model also draws from numpy.

    The members of a stack would share numbers of numpy, so only a stack without a proof has them.
    """

    stacked: bool
    outside: bool
    verify: bool = True

    def job(self, kind, data=batch, **options):
        return job_of(lambda width: kind(width, self.outside), data, verify=self.verify, **options)

    def run(self, job, folder=None):
        return list(Engine(job, folder, self.stacked).run(trials_of(job)))


WAYS = {
    "alone": Way(stacked=False, outside=True),
    "stacked": Way(stacked=True, outside=False),
    "stacked without proof": Way(stacked=True, outside=True, verify=False),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_trials_without_all_their_state_are_not_saved(tmp_path, way):
    with pytest.warns(UserWarning, match="turn") as caught:
        found = way.run(way.job(Drawing), tmp_path)
    assert {code_of(str(w.message)) for w in caught} == {"checkpoint-not-written"}
    assert all(outcome.error is None for outcome in found)
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_trials_resume_exactly(tmp_path, monkeypatch, way):
    def losses(job, folder=None):
        return {outcome.key: outcome.losses.tolist() for outcome in way.run(job, folder)}

    wanted = losses(way.job(Saving))
    with monkeypatch.context() as patch:
        half = way.job(Saving, interrupted_at(patch, 5), checkpoint_seconds=600.0)
        with pytest.raises(KeyboardInterrupt):
            losses(half, tmp_path)
    assert list(tmp_path.glob("*.safetensors"))
    assert losses(way.job(Saving), tmp_path) == wanted


def test_random_states_of_python_and_numpy():
    cpu = torch.device("cpu")
    random.gauss(0, 1)  # leaves a second number for the next call
    np.random.standard_normal()
    tensors = {f"random.{kind}": x for kind, x in checkpoints.random_states(cpu).items()}
    states = checkpoints.named_random_states(tensors)
    expected = [random.gauss(0, 1), random.random(), *np.random.standard_normal(3)]
    checkpoints.restore_random(states, cpu)
    assert [random.gauss(0, 1), random.random(), *np.random.standard_normal(3)] == expected


# --- damage ---------------------------------------------------------------------------------------


def saved_twice(tmp_path):
    path = tmp_path / "key.safetensors"
    for number in (1.0, 2.0):
        checkpoints.save(path, {"x": torch.full((500,), number)}, {"keys": ["key"]})
    return path


@pytest.mark.parametrize("place", [20, -100])
def test_a_damaged_file_falls_back_to_the_one_before_it(tmp_path, place):
    path = saved_twice(tmp_path)
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged") as caught:
        loaded = checkpoints.load(path)
    assert loaded is not None
    assert code_of(str(caught[0].message)) == "checkpoint-damaged"
    assert float(loaded[0]["x"][0]) == 1.0
    assert not path.exists()  # it is not tried again
    loaded = checkpoints.load(path)
    assert loaded is not None
    assert float(loaded[0]["x"][0]) == 1.0


def test_two_damaged_files_start_the_training_again(tmp_path):
    path = saved_twice(tmp_path)
    for file in (path, checkpoints.previous(path)):
        file.write_bytes(file.read_bytes()[:-7])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert checkpoints.load(path) is None
    assert ["starts again" in str(w.message) for w in caught] == [False, True]
    assert checkpoints.load(path) is None
    assert not list(tmp_path.iterdir())


def test_train_continues_from_the_checkpoint_before_a_damaged_one(tmp_path):
    whole = train(lambda: mlp(8), tmp_path, checkpoint_seconds=0.0)
    path = tmp_path / "run.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(UserWarning, match=r"\[checkpoint-damaged\]"):
        again = train(lambda: mlp(8), tmp_path)
    assert again.losses.tolist() == whole.losses.tolist()


def edited(width):
    model = mlp(width)
    assert isinstance(model, nn.Sequential)
    return nn.Sequential(*list(model)[:-1], nn.Linear(width, 5))


def test_an_edited_model_under_the_same_name_is_named(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stopping = Source("signs", interrupted_at(patch, 5))
        half = Job(mlp, stopping, steps=STEPS, base_sizes={"width": 8}, name="net")
        with pytest.raises(KeyboardInterrupt):
            list(run_alone(half, trials_of(half), None, tmp_path))
    job = job_of(edited)
    with pytest.warns(UserWarning, match=r"5\.weight.*\(3, 8\).*\(5, 8\)"):
        found = list(run_alone(job, trials_of(job), None, tmp_path))
    assert [outcome.error for outcome in found] == [None, None]


# --- disks ----------------------------------------------------------------------------------------


def test_train_survives_a_full_disk(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    wanted = train(lambda: mlp(8), tmp_path, checkpoint=None)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="No space left") as caught:
        found = train(lambda: mlp(8), tmp_path, checkpoint_seconds=0.0)
    assert {code_of(str(w.message)) for w in caught} == {"checkpoint-not-written"}
    assert found.losses.tolist() == wanted.losses.tolist()
    assert not list(tmp_path.iterdir())


def test_train_removes_temporary_files_of_dead_writers(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = tmp_path / f"run.safetensors.{dead.pid}.tmp"
    other = tmp_path / f"other.safetensors.{dead.pid}.tmp"
    living = tmp_path / f"run.safetensors.{os.getppid()}.tmp"
    for path in (left, other, living):
        path.write_bytes(b"half")
    train(lambda: mlp(8), tmp_path)
    assert not left.exists()
    assert other.exists()
    assert living.exists()


# --- state that acts later ------------------------------------------------------------------------

CALLS = {"of all models": 0}


class Later(nn.Module):
    """Model with a counter that acts from the fifth update on; `kept` says where it is kept."""

    def __init__(self, width, kept="attribute"):
        super().__init__()
        self.inner = mlp(width)
        self.kept = kept
        self.turn = 0
        self.recent = None

    def forward(self, x):
        h = self.inner(x)
        self.recent = h.detach().mean()  # made anew in every pass: no state
        if self.training and self.kept == "attribute":
            self.turn += 1
        if self.training and self.kept == "global":
            CALLS["of all models"] += 1
        return h * (2.0 if self.turn > 4 else 1.0)


def warned_codes(caught):
    return [code_of(str(w.message)) for w in caught]


@pytest.mark.parametrize(("kept", "name"), [("attribute", "turn"), ("global", "CALLS")])
def test_train_names_state_that_may_act_later(tmp_path, kept, name):
    with pytest.warns(UserWarning, match=name) as caught:
        train(lambda: Later(8, kept), tmp_path)
    assert warned_codes(caught) == ["state-may-be-lost"]


def test_what_every_pass_makes_anew_is_no_state(tmp_path, recwarn):
    train(lambda: Later(8, "nowhere"), tmp_path)
    assert not recwarn.list


@pytest.mark.parametrize("stacked", [False, True])
def test_trials_with_state_that_may_act_later_are_not_saved(tmp_path, stacked):
    job = job_of(Later)
    with pytest.warns(UserWarning, match="turn") as caught:
        found = list(Engine(job, tmp_path, stacked).run(trials_of(job)))
    assert set(warned_codes(caught)) == {"checkpoint-not-written"}
    assert all(outcome.error is None for outcome in found)
    assert not list(tmp_path.glob("*.safetensors"))


def with_replaced_forward():
    model = mlp(8)
    old = model.forward
    model.forward = lambda x: 0.5 * old(x)
    return model


def test_a_model_whose_copy_uses_the_original_is_saved_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match=r"\[state-may-be-lost\]") as caught:
        found = train(with_replaced_forward, tmp_path)
    assert warned_codes(caught) == ["state-may-be-lost"]
    assert (tmp_path / "run.safetensors").exists()
    assert found.losses.tolist() == train(with_replaced_forward, tmp_path).losses.tolist()


# --- state that nothing shows, and rounding that is not repeatable --------------------------------

HIDDEN = threading.local()
SYSTEM = random.SystemRandom()


class Hidden(nn.Module):
    """Model with a small effect of a counter of the thread, or of numbers of the system."""

    def __init__(self, width, kept):
        super().__init__()
        self.inner = mlp(width)
        self.kept = kept

    def forward(self, x):
        h = self.inner(x)
        if not self.training:
            return h
        HIDDEN.calls = getattr(HIDDEN, "calls", 0) + 1
        if self.kept == "thread":
            return h * (1 + 3e-4 * (HIDDEN.calls % 7))
        return h * (1 + 3e-4 * (HIDDEN.calls % 7) + 3e-4 * SYSTEM.random())


@pytest.mark.parametrize("kept", ["thread", "thread and system"])
def test_train_refuses_hidden_state_with_a_small_effect(tmp_path, kept):
    with refuses("state-not-saved", argument="checkpoint"):
        train(lambda: Hidden(8, kept), tmp_path)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("kept", ["thread", "thread and system"])
def test_trials_with_hidden_state_are_not_saved(tmp_path, kept, stacked):
    job = job_of(lambda width: Hidden(width, kept), verify=False)
    with pytest.warns(UserWarning, match="keeps state outside") as caught:
        list(Engine(job, tmp_path, stacked).run(trials_of(job)))
    assert set(warned_codes(caught)) == {"checkpoint-not-written"}
    assert not list(tmp_path.glob("*.safetensors"))


class RoundedAnew(torch.autograd.Function):
    """Identity whose gradient has another rounding each time, as of kernels that add in any order.

    `size` is relative to the largest entry.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x, size):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.size = inputs[1]

    @staticmethod
    def backward(ctx, *gradients):
        [gradient] = gradients
        generator = torch.Generator().manual_seed(SYSTEM.randrange(2**40))
        noise = torch.randn(gradient.shape[-1], generator=generator)
        return gradient + ctx.size * gradient.abs().amax() * noise, None


class AnyOrder(nn.Module):
    """Model with a tensor whose gradient is zero in theory: pure rounding, which Adam enlarges."""

    def __init__(self, width, size):
        super().__init__()
        self.inner = mlp(width)
        self.shift = nn.Parameter(torch.zeros(3))
        self.size = size

    def forward(self, x):
        y = self.inner(x) + self.shift.sum()  # cross entropy does not depend on a common shift
        return RoundedAnew.apply(y, self.size)


@pytest.mark.parametrize(("size", "saved"), [(1e-7, True), (1e-3, False)])
def test_rounding_is_no_state(tmp_path, recwarn, size, saved):
    torch.manual_seed(0)
    model = AnyOrder(8, size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    path = tmp_path / "run.safetensors"

    def run():
        o1.train(model, batch, STEPS, optimizer=optimizer, device="cpu", checkpoint=path)

    if saved:
        run()
    else:
        with refuses("state-not-saved", argument="checkpoint"):
            run()
    assert path.exists() == saved
    assert not recwarn.list


@pytest.mark.parametrize(("size", "saved"), [(1e-7, True), (1e-3, False)])
def test_rounding_is_no_state_of_a_stack(size, saved):
    job = job_of(lambda width: AnyOrder(width, size), verify=False)
    lost = state_lost_by_checkpoints(job, trials_of(job))
    assert (lost is None) == saved
    if lost is not None:
        assert "gradient" in lost


class Counting(torch.optim.SGD):
    """Optimizer with a counter that neither its state nor its attributes have."""

    calls = 0

    def step(self, closure=None):
        Counting.calls += 1
        for group in self.param_groups:
            group["lr"] *= 1 + 0.1 * Counting.calls
        return super().step(closure)


def test_train_names_state_of_an_optimizer_that_a_checkpoint_would_lose(tmp_path):
    with refuses("state-not-saved", argument="checkpoint") as caught:
        torch.manual_seed(0)
        model = mlp(8)
        optimizer = Counting(model.parameters(), lr=0.1)
        path = tmp_path / "run.safetensors"
        o1.train(model, batch, STEPS, optimizer=optimizer, device="cpu", checkpoint=path)
    assert "differs by up to" in str(caught.value)
