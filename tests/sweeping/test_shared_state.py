"""Trials of one process share files, threads and libraries: what acts is found and named."""

import decimal
import functools
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from threading import local

import pytest
import torch
from support.sweep_subjects import batch, mlp
from torch import nn

import orderone as o1
from orderone.core.errors import code_of
from orderone.sweeping import shared_state
from orderone.sweeping.engine import Engine
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import run_alone
from orderone.training import interrupts
from orderone.training.source import Source
from orderone.training.stacked.errors import NotStackable

STEPS = 5


class Doubling(nn.Module):
    """Model whose factor changes after many passes; `count` returns the number of the pass."""

    count: Callable[[], int]

    def __init__(self, width, count, late=12):
        super().__init__()
        self.inner = mlp(width)
        self.act = nn.Tanh()
        self.late = late
        vars(self)["count"] = count

    def forward(self, x):
        factor = 2 if self.count() > self.late else 1
        return self.act(factor * self.inner(x))


def sweep(build, seeds=2, data=batch, **options):
    return o1.sweep(
        build,
        {"lr": [0.01], "seed": range(seeds)},
        widths=[8],
        base=8,
        data=data,
        steps=STEPS,
        device="cpu",
        stacked=False,
        progress=False,
        **options,
    )


def notes_on_state(found):
    return [note for note in found.notes if code_of(note) == "trials-share-state"]


def test_state_in_a_file_is_named_with_the_module(tmp_path):
    calls = tmp_path / "calls.txt"

    def count():
        with calls.open("a") as stream:
            stream.write("x")
        return calls.stat().st_size

    [note] = notes_on_state(sweep(lambda width: Doubling(width, count)))
    assert "the output of act (Tanh)" in note
    assert "the loss of update 0" in note


def test_state_in_a_thread_is_named():
    held = local()
    with ThreadPoolExecutor(1) as pool:

        def more():
            held.calls = getattr(held, "calls", 0) + 1
            return held.calls

        def build(width):
            return Doubling(width, lambda: pool.submit(more).result())

        assert len(notes_on_state(sweep(build))) == 1


def test_state_that_changes_random_draws_only_is_named():
    queue = SimpleQueue()

    class Drawing(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner = mlp(width)

        def forward(self, x):
            queue.put(None)
            y = self.inner(x)
            if queue.qsize() > 10:
                torch.rand(())
            return y

    [note] = notes_on_state(sweep(Drawing))
    assert "other random numbers" in note


class Scenario:
    """Sweeps whose models act otherwise from a certain pass on, counted by a queue."""

    def __init__(self, late):
        self.queue = SimpleQueue()
        self.late = late

    def count(self):
        self.queue.put(None)
        return self.queue.qsize()

    def sweep(self, **options):
        return sweep(lambda width: Doubling(width, self.count, self.late), name="net", **options)


def after_an_interruption(scenario, tmp_path, monkeypatch):
    """Interrupt the first trial, continue it, and train the second one."""

    def data(step, seed):
        if step == 3:
            monkeypatch.setattr(interrupts, "pending", lambda: True)
        return batch(step, seed)

    options = {"store": tmp_path / f"{scenario.late}.db", "checkpoint_seconds": 0.0}
    with pytest.raises(KeyboardInterrupt):
        scenario.sweep(data=Source("signs", data), **options)
    monkeypatch.undo()
    return scenario.sweep(data=Source("signs", batch), **options)


def after_another_sweep(scenario, tmp_path, monkeypatch):
    """Train one trial in a process that has trained another one in a sweep before."""
    scenario.sweep(seeds=1)
    return scenario.sweep(seeds=1)


@pytest.mark.parametrize("run", [after_an_interruption, after_another_sweep])
def test_the_only_whole_trial_that_follows_others_is_begun_again(run, tmp_path, monkeypatch):
    quiet = Scenario(late=10**6)
    assert not notes_on_state(run(quiet, tmp_path, monkeypatch))
    in_the_last_trial = quiet.queue.qsize() - 4
    found = run(Scenario(in_the_last_trial), tmp_path, monkeypatch)
    [note] = notes_on_state(found)
    assert "was repeated after 1 trial:" in note


PASSES: SimpleQueue[None] = SimpleQueue()


class Saturating(Doubling):
    """Model that acts otherwise after twelve passes of this process, and then always."""

    def __init__(self, width):
        super().__init__(width, lambda: PASSES.put(None) or PASSES.qsize())


@pytest.mark.parametrize("stacked", [False, True])
def test_a_later_sweep_is_compared_with_the_first_one_of_the_process(stacked):
    while not PASSES.empty():
        PASSES.get()
    space = {"lr": [0.01, 0.1]}
    options = {"widths": [8], "base": 8, "steps": STEPS, "device": "cpu", "progress": False}
    o1.sweep(Saturating, space, data=batch, stacked=False, **options)
    assert PASSES.qsize() > 12  # from now on, all passes are alike
    found = o1.sweep(Saturating, space, data=batch, stacked=stacked, **options)
    [note] = notes_on_state(found)
    assert "on the example batch before the first training" in note


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
def test_models_without_such_state_get_no_note(precision):
    def build(width):
        return nn.Sequential(mlp(width, dropout=0.3), nn.BatchNorm1d(3))

    for options in ({}, {"clip": 1.0, "accumulate": 2}, {"optimizer": "muon"}):
        assert not notes_on_state(sweep(build, seeds=4, precision=precision, **options))


class Mapping(nn.Module):
    """Model that calls a module under transforms of torch.func, where values cannot be read."""

    def __init__(self, width):
        super().__init__()
        self.inner = mlp(width)
        self.act = nn.Tanh()

    def forward(self, x):
        h = torch.func.vmap(self.act)(self.inner(x))
        tangent = torch.func.jvp(self.act, (h,), (torch.ones_like(h),))[1]
        return h + tangent


def test_models_that_call_modules_under_vmap_are_trained():
    found = sweep(Mapping, seeds=2)
    assert set(found.frame["status"]) == {"done"}
    assert not notes_on_state(found)


@functools.lru_cache
def drawn(size):
    return torch.rand(size)


class Cached(nn.Module):
    """Model that draws numbers once, and keeps them in a cache of Python."""

    def __init__(self, width):
        super().__init__()
        self.inner = mlp(width, dropout=0.3)

    def forward(self, x):
        return self.inner(x) * drawn(3)


def test_each_trial_begins_with_empty_caches_of_python():
    assert not notes_on_state(sweep(Cached, seeds=4))


def closure(counts):
    """Return a build function whose models count passes in a closure of `counts()`."""

    def build(width):
        count = counts()
        model = mlp(width)

        def hook(module, args, output):
            count["passes"] += module.training
            return output * (1 + 0.01 * count["passes"])

        model.register_forward_hook(hook)
        vars(model)["scaled"] = hook
        return model

    return build


def attribute(counts):
    """Return a build function whose models count passes in an attribute of a parameter."""

    def build(width):
        model = Doubling(width, lambda: 0)
        weight = model.inner.get_submodule("0").get_parameter("weight")
        vars(weight)["count"] = counts()

        def count():
            vars(weight)["count"]["passes"] += 1
            return vars(weight)["count"]["passes"]

        vars(model)["count"] = count
        model.late = 2
        return model

    return build


@pytest.mark.parametrize("kind", [closure, attribute])
def test_variables_that_each_model_has_for_itself_are_not_shared(kind):
    assert not notes_on_state(sweep(kind(lambda: {"passes": 0}), seeds=4))
    one = {"passes": 0}
    [note] = notes_on_state(sweep(kind(lambda: one), seeds=4))
    assert "count" in note


def test_a_shared_variable_beside_one_of_each_model_is_named():
    """The functions have the same name; one captures a variable of all models."""
    one = {"passes": 0}

    def counting(count):
        def count_pass():
            count["passes"] += 1
            return 1

        return count_pass

    def build(width):
        models = [Doubling(width, counting(count)) for count in (one, {"passes": 0})]
        return nn.Sequential(models[0], nn.Linear(3, 4), models[1])

    [note] = notes_on_state(sweep(build, seeds=4))
    assert "count" in note


def test_a_resumed_trial_is_not_the_first_one(tmp_path, monkeypatch):
    options = {"store": tmp_path / "runs.db", "checkpoint_seconds": 0.0, "name": "net"}

    def data(step, seed):
        if step == STEPS - 1:
            monkeypatch.setattr(interrupts, "pending", lambda: True)
        return batch(step, seed)

    with pytest.raises(KeyboardInterrupt):
        sweep(lambda width: mlp(width, dropout=0.3), seeds=5, data=data, **options)
    monkeypatch.undo()
    found = sweep(lambda width: mlp(width, dropout=0.3), seeds=5, **options)
    assert not notes_on_state(found)
    assert found.job is not None
    [start] = found.job.starts.values()
    assert (start.trial.seed, start.trained) == (1, 4)


def test_a_start_is_repeated_after_two_four_and_eight_trials():
    read = []

    def data(step, seed):
        read.append((step, seed))
        return batch(step, seed)

    def first_batches(**options):
        read.clear()
        sweep(mlp, seeds=9, data=data, **options)
        return read.count((1, 0))

    assert first_batches() == first_batches(verify=False) + 3


def test_what_a_first_pass_leaves_does_not_depend_on_the_first_trial():
    """A cache that the check of the batch fills is the same for all trials, and in any process."""

    def losses(seeds):
        cache = {}

        class Scaled(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.inner = mlp(width)

            def forward(self, x):
                y = self.inner(x)
                return y / cache.setdefault("size", float(y.detach().abs().mean()))

        settings = {"widths": [8], "base": 8, "data": batch, "steps": STEPS, "device": "cpu"}
        space = {"lr": [0.01], "seed": seeds}
        found = o1.sweep(Scaled, space, stacked=False, progress=False, **settings)
        return {found.trials[key].seed: o.losses.tolist() for key, o in found.outcomes.items()}

    assert losses([3, 4])[4] == losses([4])[4]


def test_a_trial_that_cannot_be_begun_again_is_named():
    built = []

    def build(width):
        built.append(width)
        if len(built) > first + 2:
            raise RuntimeError("no third model")
        return mlp(width)

    first = 100
    sweep(build)
    before = len(built) - 1  # models before those that are trained, and the one begun again
    built.clear()
    first = before - 2
    found = sweep(build)
    assert set(found.frame["status"]) == {"done"}
    [note] = notes_on_state(found)
    assert "no third model" in note


def test_large_models_are_not_begun_again(monkeypatch):
    monkeypatch.setattr(shared_state, "LARGEST", 0)
    queue = SimpleQueue()
    assert not notes_on_state(sweep(lambda w: Doubling(w, lambda: queue.put(0) or queue.qsize())))


def job_of(build):
    return Job(build, Source("signs", batch), steps=STEPS, base_sizes={"width": 8})


def trials_of(job, seeds):
    settings = {"width": 8, "optimizer": "adamw", "rule": "mup", "lr": 0.01}
    return [job.trial(settings | {"seed": seed}) for seed in range(seeds)]


def test_another_process_records_its_first_trial():
    job = job_of(mlp)
    list(run_alone(job, trials_of(job, 1)))
    [start] = job.starts.values()
    assert (start.trained, start.trial.seed) == (1, 0)
    assert [output.module for output in start.outputs] == ["0", "1", "2", "3", "4", "5", ""]
    assert not pickle.loads(pickle.dumps(job)).starts


def test_a_trial_that_diverges_at_once_is_not_recorded():
    def build(width):
        model = mlp(width)
        nn.init.constant_(model.get_submodule("5").get_parameter("weight"), float("nan"))
        return model

    job = job_of(build)
    outcomes = list(run_alone(job, trials_of(job, 2)))
    assert [outcome.status for outcome in outcomes] == ["diverged"] * 2
    assert not job.starts


# --- stacks ---------------------------------------------------------------------------------------


def precision(model):
    """Count passes of training in the precision of decimal numbers, which no text shows."""
    context = decimal.getcontext()
    context.prec += model.training
    return context.prec - 28


def stacked(build, **options):
    with decimal.localcontext():
        return o1.sweep(
            build,
            {"lr": [0.01, 0.1], "seed": range(2)},
            widths=[8],
            base=8,
            data=batch,
            steps=12,
            device="cpu",
            progress=False,
            **options,
        )


class LateDecimal(nn.Module):
    """Model that acts otherwise after twelve passes of training in this process."""

    def __init__(self, width, late=12):
        super().__init__()
        self.inner = mlp(width)
        self.late = late

    def forward(self, x):
        return self.inner(x) * (2 if precision(self) > self.late else 1)


@pytest.mark.parametrize("options", [{"stacked": True}, {"stacked": "auto"}])
def test_state_that_members_of_a_stack_share_is_named_at_the_end(options):
    [note] = notes_on_state(stacked(LateDecimal, **options))
    assert "the example batch" in note


def test_state_that_the_proof_of_a_stack_has_changed_is_named():
    """Later trials begin with it, so that the first one is the same when it is begun again."""
    [note] = notes_on_state(stacked(lambda width: LateDecimal(width, late=3)))
    assert "the example batch" in note


def test_a_worker_that_receives_trials_computes_the_first_loss_itself():
    given = {"base_sizes": {"width": 8}, "name": "net", "steps": 12}
    job = pickle.loads(pickle.dumps(Job(LateDecimal, Source("signs", batch), **given)))
    settings = {"rule": "mup", "optimizer": "adamw", "width": 8, "lr": 0.01}
    trials = [job.trial(settings | {"seed": seed}) for seed in range(2)]
    with decimal.localcontext():
        outcomes = list(Engine(job, stacked=True).run(trials))
    assert all("example batch" in str(outcome.facts["shared state"]) for outcome in outcomes)


def test_a_stack_of_torch_modules_is_not_built_again():
    found = stacked(mlp)
    assert not notes_on_state(found)
    assert found.job is not None
    assert list(found.job.examples.values()) == [None]


def counted(function):
    calls = [0]

    @functools.wraps(function)
    def wrapper(self, x):
        calls[0] += 1
        return function(self, x) * (2 if calls[0] > 12 else 1)

    return wrapper


class Decorated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = mlp(width)

    @counted
    def forward(self, x):
        return self.inner(x)


class Kind(type):
    calls = 0


class OfKind(nn.Module, metaclass=Kind):
    def __init__(self, width):
        super().__init__()
        self.inner = mlp(width)

    def forward(self, x):
        Kind.calls += 1
        return self.inner(x) * (2 if Kind.calls > 12 else 1)


@functools.singledispatch
def dispatched(x):
    vars(dispatched)["calls"] = vars(dispatched).get("calls", 0) + 1
    return x * (2 if vars(dispatched)["calls"] > 12 else 1)


class Dispatching(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = mlp(width)

    def forward(self, x):
        return dispatched(self.inner(x))


@pytest.mark.parametrize(
    ("build", "name"),
    [(Decorated, "Decorated.forward.calls"), (OfKind, "Kind.calls"), (Dispatching, "dispatched")],
)
def test_state_of_decorators_and_metaclasses_is_named(build, name):
    found = stacked(build)
    assert any(name in note for note in found.notes)
    assert len(notes_on_state(found)) == 1


def remembering_loss():
    """Return a loss that keeps a history where values can be read, which is not in a stack."""
    history: list[float] = []

    def loss(outputs, targets):
        value = nn.functional.cross_entropy(outputs, targets)
        with suppress(RuntimeError):
            history.append(float(value.detach()))
        return value * (2 if len(history) > 1000 else 1)

    return loss


def test_a_loss_that_keeps_state_for_all_trials_is_not_stacked():
    with pytest.raises(NotStackable) as caught:
        stacked(mlp, stacked=True, loss=remembering_loss())
    assert caught.value.code == "not-repeatable"
    assert "history" in str(caught.value)


class CountingLoss:
    """Loss that counts its calls; each training has a copy."""

    def __init__(self):
        self.calls = 0

    def __call__(self, outputs, targets):
        self.calls += 1
        return nn.functional.cross_entropy(outputs, targets) / (1 + 0.1 * self.calls)


def test_a_loss_that_is_copied_for_each_training_is_stacked():
    found = stacked(mlp, stacked=True, loss=CountingLoss())
    assert {outcome.facts["engine"] for outcome in found.outcomes.values()} == {"stacked"}
