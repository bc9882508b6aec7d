"""A checkpoint carries all state of a training, survives damage, and says what it cannot hold."""

import array
import contextvars
import errno
import functools
import itertools
import os
import random
import subprocess
import sys
import threading
import types
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support import sweep_subjects
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
from orderone.training import interrupts, resume_check, same_update
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

SYSTEM = random.SystemRandom()


class Hidden(nn.Module):
    """Model with a small effect of a counter in a file, and of numbers of the system."""

    def __init__(self, width, kept, path):
        super().__init__()
        self.path = path
        self.inner = mlp(width)
        self.kept = kept

    def forward(self, x):
        h = self.inner(x)
        if not self.training:
            return h
        calls = int(self.path.read_text()) + 1
        self.path.write_text(str(calls))
        if self.kept == "file":
            return h * (1 + 3e-4 * (calls % 7))
        return h * (1 + 3e-4 * (calls % 7) + 3e-4 * SYSTEM.random())


@pytest.fixture
def counter(tmp_path):
    path = tmp_path / "calls.txt"
    path.write_text("0")
    return path


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setenv("CALLS", "0")


@pytest.mark.parametrize("kept", ["file", "file and system"])
def test_train_refuses_hidden_state_with_a_small_effect(tmp_path, counter, kept):
    with refuses("state-not-saved", argument="checkpoint"):
        train(lambda: Hidden(8, kept, counter), tmp_path)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("kept", ["file", "file and system"])
def test_trials_with_hidden_state_are_not_saved(tmp_path, counter, kept, stacked):
    job = job_of(lambda width: Hidden(width, kept, counter), verify=False)
    with pytest.warns(UserWarning, match=r"calls\.txt") as caught:
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
        if ctx.size > 1:  # two random numbers may be close by chance: their powers of ten are not
            noise = noise * 10 ** SYSTEM.uniform(0, 9)
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


class WritingToItsBatch(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = mlp(width)

    def forward(self, x):
        return self.inner(x.mul_(1.5))


def test_what_a_model_writes_to_its_batch_is_no_state_of_a_stack():
    job = job_of(WritingToItsBatch)
    assert state_lost_by_checkpoints(job, trials_of(job)) is None


@pytest.mark.parametrize(("size", "saved"), [(1e-3, True), (30.0, False)])
def test_differences_that_may_be_rounding_of_a_gpu(tmp_path, monkeypatch, size, saved):
    """Kernels of a GPU add in any order, and products round to TensorFloat32."""
    monkeypatch.setattr(same_update, "on_cpu", lambda update: False)
    if saved:
        with pytest.warns(UserWarning, match="state-may-be-lost") as caught:
            train(lambda: AnyOrder(8, size), tmp_path)
        assert warned_codes(caught) == ["state-may-be-lost"]
    else:
        with refuses("state-not-saved", argument="checkpoint"):
            train(lambda: AnyOrder(8, size), tmp_path)
    assert (tmp_path / "run.safetensors").exists() == saved
    job = job_of(lambda width: AnyOrder(width, size), verify=False)
    assert (state_lost_by_checkpoints(job, trials_of(job)) is None) == saved


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


# --- state in objects without attributes, in losses and in caches ---------------------------------

HIDDEN = threading.local()
VARIABLE = contextvars.ContextVar("calls", default=0)
DRAWN_BY_EXEC = """
calls = 0
def late(h):
    global calls
    calls += 1
    return 2 * h if calls > 4 else h
"""


@functools.lru_cache
def drawn_table(width):
    return torch.rand(width)


@functools.lru_cache
def computed_table(width):
    return torch.arange(width) / width


def in_a_thread(model):
    def late(h):
        HIDDEN.late = getattr(HIDDEN, "late", 0) + 1
        return 2 * h if HIDDEN.late > 4 else h

    model.late = late


def in_a_context(model):
    def late(h):
        VARIABLE.set(VARIABLE.get() + 1)
        return 2 * h if VARIABLE.get() > 4 else h

    model.late = late


def in_code_of_exec(model):
    names = {}
    exec(DRAWN_BY_EXEC, names)
    model.late = names["late"]


def in_an_iterator(model):
    model.factors = itertools.chain([1.0] * 4, itertools.repeat(2.0))
    model.late = types.MethodType(lambda self, h: next(self.factors) * h, model)


def in_a_buffer(model):
    model.calls = array.array("l", [0])

    def late(self, h):
        self.calls[0] += 1
        return 2 * h if self.calls[0] > 4 else h

    model.late = types.MethodType(late, model)


def in_another_module(model):
    def count():
        sweep_subjects.CALLS[0] += 1
        return sweep_subjects.CALLS[0]

    sweep_subjects.CALLS[0] = 0
    model.late = lambda h: 2 * h if count() > 4 else h


def in_the_environment(model):
    def late(h):
        os.environ["CALLS"] = str(int(os.environ["CALLS"]) + 1)
        return 2 * h if int(os.environ["CALLS"]) > 4 else h

    model.late = late


def in_a_function(model):
    model.late = lambda h: 2 * h if counted_by_attribute() > 4 else h


def counted_by_attribute():
    function = counted_by_attribute
    vars(function)["calls"] = vars(function).get("calls", 0) + 1
    return vars(function)["calls"]


def in_a_default(model):
    model.late = lambda h: 2 * h if counted_by_default() > 4 else h


def counted_by_default(seen=[]):  # noqa: B006
    seen.append(1)
    return len(seen)


def in_a_method(model):
    calls = [0]

    class Counting(nn.Module):
        def forward(self, h):
            calls[0] += 1
            return 2 * h if calls[0] > 4 else h

    model.late = Counting()


class Holder:
    def __init__(self, value):
        self.value = value


def deep_in_objects(model):
    model.holder = Holder(Holder(Holder(Holder(Holder(0)))))

    def late(self, h):
        inner = self.holder.value.value.value.value
        inner.value += 1
        return 2 * h if inner.value > 4 else h

    model.late = types.MethodType(late, model)


class CountingHook:
    calls = 0

    def __call__(self, module, inputs):
        self.calls += 1
        return (2 * inputs[0] if self.calls > 4 else inputs[0],)


def in_a_hook(model):
    model.late = nn.Identity()
    model.late.register_forward_pre_hook(CountingHook())


def on_a_parameter(model):
    def late(self, h):
        p = self.inner[0].weight
        p.calls = getattr(p, "calls", 0) + 1
        return 2 * h if p.calls > 4 else h

    model.late = types.MethodType(late, model)


def in_a_running_generator(model):
    def factors():
        yield from [1.0] * 4
        while True:
            yield 2.0

    model.factors = factors()
    model.late = types.MethodType(lambda self, h: next(self.factors) * h, model)


class Late(nn.Module):
    """Model whose state acts from the fifth call on; `prepare` sets `late`."""

    late: Any

    def __init__(self, width, prepare):
        super().__init__()
        self.inner = mlp(width)
        prepare(self)

    def forward(self, x):
        h = self.inner(x)
        return self.late(h) if self.training else h


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (in_a_thread, "HIDDEN"),
        (in_a_context, "VARIABLE"),
        (in_code_of_exec, "calls"),
        (in_an_iterator, "factors"),
        (in_a_buffer, "calls"),
        (in_another_module, "sweep_subjects.CALLS"),
        (in_the_environment, "os.environ"),
        (in_a_function, "counted_by_attribute.calls"),
        (in_a_default, "counted_by_default"),
        (in_a_method, "Counting.forward.calls"),
        (deep_in_objects, "holder"),
        (in_a_hook, "hook 0"),
        (on_a_parameter, "weight.calls"),
        (in_a_running_generator, "cannot be copied"),
    ],
)
def test_train_names_state_that_no_attribute_shows(tmp_path, counted, prepare, words):
    with pytest.warns(UserWarning, match=words) as caught:
        train(lambda: Late(8, prepare), tmp_path)
    assert warned_codes(caught) == ["state-may-be-lost"]


class Marked(nn.Module):
    """Model with an attribute on a parameter, which torch leaves out of a copy of the model."""

    def __init__(self, width):
        super().__init__()
        self.inner = mlp(width)
        self.scale = nn.Parameter(torch.ones(()))
        vars(self.scale)["power"] = 2

    def forward(self, x):
        return self.inner(x) * self.scale ** vars(self.scale)["power"]


def test_attributes_of_parameters_are_copied(tmp_path, recwarn):
    train(lambda: Marked(8), tmp_path)
    assert not recwarn.list
    assert (tmp_path / "run.safetensors").exists()


OFFSETS: dict[int, float] = {}


class Registered(nn.Module):
    """Model that works only under its own identity, so that no copy can be trained."""

    def __init__(self, width):
        super().__init__()
        self.inner = mlp(width)
        OFFSETS[id(self)] = 0.5

    def forward(self, x):
        return self.inner(x + OFFSETS[id(self)])


def test_a_copy_that_cannot_be_trained_does_not_end_the_training(tmp_path):
    with pytest.warns(UserWarning, match="cannot be trained") as caught:
        trained = train(lambda: Registered(8), tmp_path)
    assert warned_codes(caught) == ["state-may-be-lost"]
    assert len(trained.losses) == STEPS
    assert (tmp_path / "run.safetensors").exists()


class Listed(nn.Module):
    """Model with an array of objects, whose bytes are addresses."""

    def __init__(self, width):
        super().__init__()
        self.inner = mlp(width)
        self.options = np.array([{"scale": 1.5}, None], dtype=object)

    def forward(self, x):
        return self.inner(x * self.options[0]["scale"])


def test_equal_arrays_of_objects_are_no_state(tmp_path, recwarn):
    train(lambda: Listed(8), tmp_path)
    job = job_of(Listed)
    assert state_lost_by_checkpoints(job, trials_of(job)) is None
    assert not recwarn.list


class AveragingLoss(nn.Module):
    """Cross entropy, scaled by its average so far; a stack leaves tensors of vmap here."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(()))

    def forward(self, outputs, targets):
        loss = nn.functional.cross_entropy(outputs, targets)
        with torch.no_grad():
            self.get_buffer("average").mul_(0.9).add_(0.1 * loss.detach())
        return loss * (1 + self.get_buffer("average"))


def test_state_that_a_stack_leaves_in_a_loss_is_named():
    job = job_of(mlp, loss=AveragingLoss())
    lost = state_lost_by_checkpoints(job, trials_of(job))
    assert lost is not None
    assert "the loss function" in lost


class Table(nn.Module):
    """Model with a table that is made at the first call in a process."""

    def __init__(self, width, table):
        super().__init__()
        self.inner = mlp(width)
        self.table = table

    def forward(self, x):
        return self.inner(x + self.table(x.shape[-1]))


def forget_tables():
    drawn_table.cache_clear()
    computed_table.cache_clear()


def test_a_cache_with_drawn_numbers_is_state(tmp_path):
    forget_tables()
    with refuses("state-not-saved", argument="checkpoint"):
        train(lambda: Table(8, lambda n: drawn_table(n)), tmp_path)


def test_a_cache_with_computed_numbers_is_no_state(tmp_path, recwarn):
    forget_tables()
    train(lambda: Table(8, lambda n: computed_table(n)), tmp_path)
    assert not recwarn.list


class CountingLoss:
    """Cross entropy times a factor that depends on the number of calls, from `first` on."""

    def __init__(self, first=0):
        self.calls = 0
        self.first = first

    def __call__(self, outputs, targets):
        self.calls += 1
        loss = nn.functional.cross_entropy(outputs, targets)
        return loss * (1 + 0.1 * max(0, self.calls - self.first))


def test_train_names_the_state_of_a_loss(tmp_path):
    with refuses("state-not-saved", argument="checkpoint") as caught:
        train(lambda: mlp(8), tmp_path, loss=CountingLoss())
    assert "the loss function" in str(caught.value)
    with pytest.warns(UserWarning, match="the loss function") as warned:
        found = train(lambda: mlp(8), tmp_path, loss=CountingLoss(4))
    assert warned_codes(warned) == ["state-may-be-lost"]
    wanted = train(lambda: mlp(8), tmp_path, loss=CountingLoss(4), checkpoint=None)
    assert found.losses.tolist() == wanted.losses.tolist()  # the check has counted no call


def test_a_stack_does_not_lose_attributes_of_parameters():
    job = job_of(lambda width: Late(width, on_a_parameter), precision="float64")
    trials = trials_of(job)
    wanted = {outcome.key: outcome.losses for outcome in run_alone(job, trials)}
    for outcome in Engine(job).run(trials):
        np.testing.assert_allclose(outcome.losses, wanted[outcome.key], rtol=1e-12)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("first", [0, 4])
def test_trials_with_a_counting_loss_are_not_saved(tmp_path, first, stacked):
    job = job_of(mlp, loss=CountingLoss(first))
    with pytest.warns(UserWarning, match="the loss function") as caught:
        list(Engine(job, tmp_path, stacked).run(trials_of(job)))
    assert set(warned_codes(caught)) == {"checkpoint-not-written"}


@pytest.mark.parametrize("stacked", [False, True])
def test_each_trial_begins_with_the_loss_as_it_was_passed(stacked):
    loss = CountingLoss()
    alone = job_of(mlp, loss=loss)
    wanted = {}
    for trial in trials_of(alone):
        [outcome] = run_alone(alone, [trial])
        wanted[outcome.key] = outcome.losses
    job = job_of(mlp, loss=loss)
    for outcome in Engine(job, None, stacked).run(trials_of(job)):
        np.testing.assert_allclose(outcome.losses, wanted[outcome.key], rtol=1e-6)
    assert loss.calls == 0


def test_each_trial_fills_its_own_caches():
    def losses(seeds):
        forget_tables()
        space = {"lr": [0.01], "seed": seeds}
        settings = {"widths": [8], "data": batch, "steps": 4, "device": "cpu", "progress": False}
        sweep = o1.sweep(lambda width: Table(width, lambda n: drawn_table(n)), space, **settings)
        return [outcome.losses.tolist() for outcome in sweep.outcomes.values()]

    assert losses([0, 1]) == [*losses([0]), *losses([1])]


@functools.lru_cache
def loaded_once():
    LOADED.append(1)
    return batch


LOADED: list[int] = []


def test_caches_of_the_data_are_not_emptied():
    LOADED.clear()
    loaded_once.cache_clear()
    job = job_of(
        lambda width: Table(width, lambda n: computed_table(n)), lambda *at: loaded_once()(*at)
    )
    list(run_alone(job, trials_of(job)))
    assert LOADED == [1]


# --- unusual tensors ------------------------------------------------------------------------------


class Unusual(nn.Module):
    """Model with complex numbers, a table with sparse gradients, and a buffer of flags.

    If `forgets`, an attribute changes them.
    """

    def __init__(self, forgets):
        super().__init__()
        self.inner = mlp(8)
        self.table = nn.Embedding(2, 4, sparse=True)
        self.wave = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.register_buffer("flags", torch.zeros(2, dtype=torch.bool))
        self.forgets = forgets
        self.calls = 0

    def forward(self, x):
        self.calls += self.forgets
        self.flags = self.flags.logical_xor(torch.tensor([self.calls % 2 == 1, True]))
        x = torch.fft.irfft(torch.fft.rfft(x) * self.wave, n=4)
        return self.inner(x + self.table((x[:, 0] > 0).long()))


@pytest.mark.parametrize("forgets", [False, True])
def test_unusual_tensors_are_compared(tmp_path, recwarn, forgets):
    if not forgets:
        train(lambda: Unusual(False), tmp_path)
        assert not recwarn.list
        return
    with refuses("state-not-saved", argument="checkpoint") as caught:
        train(lambda: Unusual(True), tmp_path)
    assert "calls" in str(caught.value)
    assert "flags differs by up to 1" in str(caught.value)


class Graph(nn.Module):
    """Model with the adjacency matrix of a graph as a sparse buffer, and as an attribute."""

    def __init__(self, layout, trained):
        super().__init__()
        self.inner = mlp(8)
        self.near: torch.Tensor
        self.register_buffer("near", torch.eye(8).to_sparse(layout=layout))
        self.far = torch.eye(8).to_sparse(layout=layout)
        self.trained = trained

    def forward(self, x):
        if self.training and self.trained:
            with torch.no_grad():
                self.near.values().mul_(0.5)
        return self.near @ self.inner(x) + self.far @ self.inner(-x)


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_are_saved(tmp_path, monkeypatch, layout):
    def build():
        model = Graph(layout, trained=layout == torch.sparse_csr)
        if layout == torch.sparse_coo:
            model.near = model.near.coalesce()
        return model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch cannot copy such a model
        whole = train(build, tmp_path, checkpoint=None)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            train(build, tmp_path, Source("signs", interrupted_at(patch, 4)))
        resumed = train(build, tmp_path, Source("signs", batch))
    np.testing.assert_array_equal(whole.losses, resumed.losses)


class Growing(nn.Module):
    """Model whose buffer grows, or is made by a pass of training."""

    def __init__(self, width, late=0, makes=False):
        super().__init__()
        self.inner = mlp(width)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        if not makes:
            self.register_buffer("past", torch.zeros(1))
        self.late = late

    def forward(self, x):
        if self.training:
            self.calls += 1
            if int(self.calls) > self.late:
                past = getattr(self, "past", torch.zeros(1))
                self.register_buffer("past", torch.cat([past, past.new_ones(1)]))
        return self.inner(x)


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("makes", [False, True])
def test_tensors_that_training_resizes_are_named(tmp_path, late, makes):
    with refuses("state-not-saved", argument="checkpoint") as caught:
        train(lambda: Growing(8, late, makes), tmp_path)
    assert "past" in str(caught.value)
    job = job_of(lambda width: Growing(width, late, makes), batch)
    with pytest.warns(UserWarning, match=r"past.*\[checkpoint-not-written\]"):
        outcomes = list(run_alone(job, trials_of(job), checkpoint=tmp_path))
    assert all(outcome.finished for outcome in outcomes)


class Untying(nn.Module):
    """Model that ends a tie of two weights in a late pass: a parameter is added."""

    def __init__(self):
        super().__init__()
        self.inner = mlp(8)
        self.twin = nn.Linear(8, 8)
        self.twin.weight = self.inner.get_submodule("2").get_parameter("weight")
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.calls += 1
            if int(self.calls) == 4:
                self.twin.weight = nn.Parameter(self.twin.weight.detach().clone())
        h = self.inner.get_submodule("0")(x)
        return self.inner(x) + self.twin(h).mean()


class Softening(nn.Module):
    """Model that replaces a mask of truth values by real numbers in a late pass."""

    def __init__(self):
        super().__init__()
        self.inner = mlp(8)
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.calls += 1
            if int(self.calls) == 4:
                self.mask = self.mask * 0.3
        return self.inner(x) * self.mask


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(
    ("build", "words"),
    [
        (Softening, "from truth values of shape (3,) to real numbers of shape (3,)"),
        (
            lambda: Growing(8, late=3),
            "of shape (1,) to real numbers of shape (4,)",
        ),
        (Untying, "twin.weight was added, real numbers of shape (8, 8)"),
    ],
)
def test_a_training_that_resizes_tensors_late_says_so_when_it_is_resumed(
    tmp_path, monkeypatch, build, words, folder
):
    path = tmp_path / ("run" if folder else "run.safetensors")
    with (
        monkeypatch.context() as patch,
        pytest.warns(UserWarning, match="register tensors of their final shape") as caught,
        pytest.raises(KeyboardInterrupt),
    ):
        train(build, tmp_path, Source("signs", interrupted_at(patch, 5)), checkpoint=path)
    assert warned_codes(caught) == ["state-may-be-lost"]
    with refuses("state-not-saved", argument="checkpoint") as refused:
        train(build, tmp_path, Source("signs", batch), checkpoint=path)
    assert words in str(refused.value)


def test_a_checkpoint_of_resized_tensors_continues_a_model_that_has_them(tmp_path, monkeypatch):
    with (
        monkeypatch.context() as patch,
        pytest.warns(UserWarning, match="state-may-be-lost"),
        pytest.raises(KeyboardInterrupt),
    ):
        train(lambda: Growing(8, 3), tmp_path, Source("signs", interrupted_at(patch, 5)))

    def as_saved():
        model = Growing(8, late=100)
        model.register_buffer("past", torch.ones(4))
        return model

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resumed = train(as_saved, tmp_path, Source("signs", batch))
    assert len(resumed.losses) == STEPS
    assert not caught


def test_a_trial_that_resizes_tensors_late_says_why_it_has_no_checkpoint(tmp_path):
    job = job_of(lambda width: Growing(width, late=3), batch)
    with pytest.warns(UserWarning, match=r"past.*\[checkpoint-not-written\]"):
        outcomes = list(run_alone(job, trials_of(job), checkpoint=tmp_path))
    assert all(outcome.finished for outcome in outcomes)


class Hooked(nn.Module):
    """Model with a hook that counts backward passes in a buffer of this model, not of a copy."""

    def __init__(self, late):
        super().__init__()
        self.inner = mlp(8)
        self.register_buffer("calls", torch.zeros(()))
        self.late = late

        def count(module, before, after):
            self.get_buffer("calls").add_(1)

        self.inner.get_submodule("2").register_full_backward_hook(count)

    def forward(self, x):
        return self.inner(x) * (2 if self.calls > self.late else 1)


@pytest.mark.parametrize("late", [0, 1, 2, 5])
def test_the_check_of_checkpoints_changes_no_training(tmp_path, late):
    whole = train(lambda: Hooked(late), tmp_path, checkpoint=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checked = train(lambda: Hooked(late), tmp_path)
    np.testing.assert_array_equal(whole.losses, checked.losses)
    assert set(warned_codes(caught)) <= {"state-may-be-lost"}


def test_tensors_are_compared_by_their_bits():
    model = nn.Module()
    kinds = (torch.float8_e4m3fn, torch.complex64, torch.bool, torch.bfloat16)
    for number, kind in enumerate(kinds):
        model.register_buffer(f"x{number}", torch.ones(3).to(kind))
    model.register_buffer("lost", torch.tensor(float("nan")))
    saved = {f"model.{name}": x.clone() for name, x in model.named_buffers()}
    assert resume_check.restored_tensors(model, saved) == []
    model.get_buffer("x1").mul_(2)
    model.get_buffer("lost").fill_(1)
    assert resume_check.restored_tensors(model, saved) == ["x1", "lost"]
    assert torch.equal(model.get_buffer("x1"), torch.ones(3, dtype=torch.complex64))
    assert model.get_buffer("lost").isnan()


class CountingSGD(torch.optim.SGD):
    """Optimizer that counts steps on its class, and acts otherwise from the ninth step on."""

    steps = 0

    def step(self, closure=None):
        CountingSGD.steps += 1
        for group in self.param_groups:
            group["weight_decay"] = 0.1 * (CountingSGD.steps > 8)
        return super().step(closure)


def with_counting_hook(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    counted = {"steps": 0}

    def after_step(*_):
        counted["steps"] += 1

    optimizer.register_step_post_hook(after_step)
    return optimizer


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda parameters: CountingSGD(parameters, lr=0.1), "CountingSGD.steps"),
        (with_counting_hook, "counted"),
    ],
)
def test_train_names_state_of_optimizers_that_acts_late(tmp_path, make, words):
    torch.manual_seed(0)
    model = mlp(8)
    path = tmp_path / "run.safetensors"
    with pytest.warns(UserWarning, match=words) as caught:
        o1.train(model, batch, STEPS, optimizer=make(model.parameters()), checkpoint=path)
    assert warned_codes(caught) == ["state-may-be-lost"]


def test_optimizers_of_torch_have_no_state_outside(tmp_path, recwarn):
    for make in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad, torch.optim.NAdam):
        model = mlp(8)
        optimizer = make(model.parameters(), lr=0.01)
        torch.optim.lr_scheduler.ConstantLR(optimizer)
        path = tmp_path / f"{make.__name__}.safetensors"
        o1.train(model, batch, STEPS, optimizer=optimizer, checkpoint=path)
    assert not recwarn.list
