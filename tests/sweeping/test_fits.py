"""Stacks that fit the device: their size, smaller ones if memory is short, and their speed."""

import itertools
import time
from contextlib import nullcontext

import pytest
import torch
from support.stacked_subjects import SUBJECTS, mlp

import orderone as o1
from orderone.sweeping.engine import Engine
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import run_alone
from orderone.sweeping.stacked import (
    call_overhead,
    comparison,
    first_steps,
    run,
    run_stacked,
    training,
)
from orderone.sweeping.stacked import capacity as capacity_module
from orderone.sweeping.stacked import free_memory as free_memory_module
from orderone.sweeping.stacked.capacity import ON_CPU, USABLE, capacity
from orderone.sweeping.stacked.free_memory import bytes_for_gradients, free_memory
from orderone.sweeping.stacked.run import equal_size
from orderone.sweeping.stacked.training import StackedTraining
from orderone.training.source import Source
from orderone.training.stacked import compiling
from orderone.training.stacked.compiled_step import FixedStep
from orderone.training.stacked.errors import NotStackable
from orderone.training.stacked.stack import Stack
from orderone.training.step import Step

MIB = 1 << 20


def batch(step: int, seed: int):
    return SUBJECTS["mlp"].batch(torch.Generator().manual_seed(1000 * seed + step))


def job(steps: int = 4, **options) -> Job:
    return Job(
        build=mlp,
        data=Source("numbers", batch, list),
        steps=steps,
        base_sizes={"width": 8},
        **options,
    )


def trials(j: Job, number: int = 4):
    settings = {"width": 16, "rule": "mup", "optimizer": "adamw", "seed": 0}
    return [j.trial({**settings, "lr": 10 ** -(2 + k)}) for k in range(number)]


class SmallDevice:
    """GPU with little memory, for the functions of torch.cuda that `capacity` calls."""

    def __init__(self, free: int, activations: int):
        self.free = free
        self.activations = activations

    def patch(self, monkeypatch):
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(cuda, "reset_peak_memory_stats", lambda device: None)
        monkeypatch.setattr(cuda, "memory_allocated", lambda device: 7 * MIB)
        monkeypatch.setattr(cuda, "max_memory_allocated", lambda device: 7 * MIB + self.activations)
        monkeypatch.setattr(cuda, "mem_get_info", lambda device: (self.free, self.free))


@pytest.mark.parametrize(("free", "expected"), [(1000, 64), (200, 42), (50, 10), (3, 1)], ids=str)
def test_as_many_members_as_fit(monkeypatch, free, expected):
    SmallDevice(free * MIB, 3 * MIB).patch(monkeypatch)
    members = capacity(torch.device("cuda"), 64, lambda: MIB)
    assert members == expected
    assert expected == 1 or members * 4 * MIB <= USABLE * free * MIB


@pytest.mark.parametrize(
    ("members", "most", "sizes"),
    [(64, 42, [32, 32]), (64, 64, [64]), (10, 4, [4, 4, 2]), (9, 4, [3, 3, 3]), (5, 1, [1] * 5)],
)
def test_stacks_have_nearly_the_same_size(members, most, sizes):
    size = equal_size(members, most)
    assert [len(range(members)[k : k + size]) for k in range(0, members, size)] == sizes


class LittleMemory(StackedTraining):
    """Training on a device that holds two members."""

    most = 2

    def run(self, report):
        if len(self.slots) > self.most:
            raise torch.OutOfMemoryError("no memory")
        return super().run(report)


class NoMemory(LittleMemory):
    most = 0


def test_stacks_that_do_not_fit_are_halved(monkeypatch):
    monkeypatch.setattr(run, "StackedTraining", LittleMemory)
    j = job()
    stacked = {outcome.key: outcome for outcome in run_stacked(j, trials(j))}
    alone = {outcome.key: outcome for outcome in run_alone(j, trials(j))}
    assert {outcome.facts["members"] for outcome in stacked.values()} == {2}
    assert stacked.keys() == alone.keys()
    for key, outcome in alone.items():
        assert stacked[key].losses == pytest.approx(outcome.losses, rel=1e-5)


def test_what_fits_no_stack_is_trained_alone(monkeypatch):
    monkeypatch.setattr(run, "StackedTraining", NoMemory)
    j = job()
    outcomes = list(Engine(j, None, "auto").run(trials(j)))
    assert len(outcomes) == 4
    for outcome in outcomes:
        assert outcome.error is None
        assert "OutOfMemoryError" in str(outcome.facts["not stacked"])


@pytest.mark.parametrize(("free", "expected"), [(2000, 16), (50, 5), (11, 1), (0, 1)], ids=str)
def test_as_many_members_as_fit_in_main_memory(monkeypatch, free, expected):
    """A member has 8 MiB: 4 of state and gradients, and 4 that the backward pass reads."""
    monkeypatch.setattr(capacity_module, "free_memory", lambda: free * MIB)
    weight = torch.ones(MIB // 2, requires_grad=True)

    def one_step():
        ((weight * 2).exp() * weight).sum().backward()  # reads the weight and the exponential
        return 2 * MIB

    assert bytes_for_gradients(one_step) == 4 * MIB
    device = torch.device("cpu")
    assert capacity(device, 64, one_step, [lambda: 20 * MIB]) == expected


def test_memory_is_not_measured_where_it_suffices_in_any_case(monkeypatch):
    monkeypatch.setattr(capacity_module, "free_memory", lambda: 1000 * MIB)

    def one_step():
        raise AssertionError("measured")

    assert (
        capacity(torch.device("cpu"), 64, one_step, [lambda: 99 * MIB, lambda: 10 * MIB]) == ON_CPU
    )
    monkeypatch.setattr(capacity_module, "free_memory", lambda: None)  # not on Linux
    assert capacity(torch.device("cpu"), 64, one_step, [lambda: 1000 * MIB]) == ON_CPU


def test_limits_of_containers_count(monkeypatch, tmp_path):
    system = tmp_path / "meminfo"
    system.write_text("MemTotal: 900 kB\nMemAvailable: 500 kB\n")
    own = tmp_path / "cgroup"
    own.write_text("0::/pod/box\n")
    group = tmp_path / "groups" / "pod"
    (group / "box").mkdir(parents=True)
    monkeypatch.setattr(free_memory_module, "SYSTEM", system)
    monkeypatch.setattr(free_memory_module, "OWN_GROUP", own)
    monkeypatch.setattr(free_memory_module, "GROUPS", tmp_path / "groups")
    assert free_memory() == 500 * 1024
    (group / "box" / "memory.max").write_text("max\n")
    (group / "box" / "memory.current").write_text("1000\n")
    assert free_memory() == 500 * 1024
    (group / "memory.max").write_text("3000\n")
    (group / "memory.current").write_text("1000\n")
    (group / "memory.stat").write_text("anon 5\ninactive_file 100\n")
    assert free_memory() == 2100
    monkeypatch.setattr(free_memory_module, "SYSTEM", tmp_path / "none")
    monkeypatch.setattr(free_memory_module, "OWN_GROUP", tmp_path / "none")
    assert free_memory() is None


def test_a_sweep_is_split_where_memory_is_short(monkeypatch):
    whole = losses_of()
    assert {outcome.facts["members"] for outcome in whole.outcomes.values()} == {4}
    assert not any("[stack-split]" in note for note in whole.notes)
    monkeypatch.setattr(capacity_module, "_on_cpu", lambda one_step: one_step() and MIB)
    monkeypatch.setattr(capacity_module, "free_memory", lambda: 3 * MIB)
    monkeypatch.setattr(run, "LARGEST_ENTRY", MIB)  # no bound tells that memory suffices
    split = losses_of()
    assert {outcome.facts["members"] for outcome in split.outcomes.values()} == {2}
    assert_same(split, whole)
    (note,) = [note for note in split.notes if note.endswith("[stack-split]")]
    assert "at most 2 members instead of one stack of 4" in note


def test_an_allocation_that_fails_on_a_cpu_halves_the_stack(monkeypatch):
    step = Stack.gradients

    def gradients(self, batches, run=None):
        if len(self) > 2:
            with self.program.explained():
                torch.empty(1 << 50)  # more than any machine has
        return step(self, batches, run)

    whole = losses_of()
    monkeypatch.setattr(Stack, "gradients", gradients)
    split = losses_of()
    assert {outcome.facts["members"] for outcome in split.outcomes.values()} == {2}
    assert_same(split, whole)
    assert [note.endswith("[stack-split]") for note in split.notes] == [True]


# --- speed on a CPU -------------------------------------------------------------------------------


def seconds(monkeypatch, together: float, alone: float) -> None:
    monkeypatch.setattr(comparison, "WORTH_MEASURING", 4)
    monkeypatch.setattr(comparison, "_seconds_together", lambda *args: together)
    monkeypatch.setattr(comparison, "_seconds_alone", lambda *args: alone)
    monkeypatch.setattr(comparison, "_seconds_of_first", lambda *args: (together, alone))


@pytest.mark.parametrize(("together", "engine"), [(3.9, "stacked"), (20.0, "alone")])
def test_the_faster_way_is_chosen(monkeypatch, together, engine):
    seconds(monkeypatch, together, 1.0)
    j = job(verify=True)
    outcomes = list(Engine(j, None, "auto").run(trials(j)))
    found = {outcome.facts["engine"] for outcome in outcomes}
    if engine == "stacked":
        assert found == {"stacked"}
    else:
        assert found != {"stacked"}
        assert {str(o.facts["not stacked"]).endswith("[stack-slower]") for o in outcomes} == {True}


def test_other_programs_do_not_decide(monkeypatch):
    """Waiting for a core looks like a sleep; with one thread, it is no work."""
    monkeypatch.setattr(comparison, "WORTH_MEASURING", 4)
    gradients = Stack.gradients

    def after_a_wait(self, *args):
        time.sleep(0.3)
        return gradients(self, *args)

    monkeypatch.setattr(Stack, "gradients", after_a_wait)
    j = job(verify=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        outcomes = list(Engine(j, None, "auto").run(trials(j, 32)))  # much faster in a stack
    finally:
        torch.set_num_threads(threads)
    assert {outcome.facts["engine"] for outcome in outcomes} == {"stacked"}


def test_first_updates_of_a_member_alone_are_not_its_speed(monkeypatch):
    """A member between steps of the stack is slower than the same member alone."""
    clock = itertools.accumulate([0.0, 5.0, 0.0, 4.0, 0.0, 2.0, 0.0, 1.0, 0.0, 3.0])
    monkeypatch.setattr(first_steps, "seconds_of_work", lambda: next(clock))
    calls: list[int] = []

    class Update(Step):
        def __init__(self):
            pass

        def backward(self, step):
            calls.append(step)
            return []

        def apply(self):
            return None

    assert first_steps.fastest_update(Update(), comparison.UPDATES_ALONE, 2) == 1.0
    assert calls == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    ("steps", "together", "error"),
    [
        (50, 4.2, None),  # 47 steps of a stack, or 50 of each member: the first ones are lost
        (50, 4.3, NotStackable),
        (600, 4.01, None),
        (600, 4.2, comparison.LooksSlower),
        (600, 5.1, NotStackable),
    ],
)
def test_the_time_that_is_left_decides(monkeypatch, steps, together, error):
    monkeypatch.setattr(comparison, "_seconds_of_first", lambda *args: (together, 1.0))
    first = object.__new__(first_steps.FirstSteps)
    first.steps = 3
    with nullcontext() if error is None else pytest.raises(error):
        comparison.must_look_faster(first, 4, steps)


def test_a_second_measurement_decides(monkeypatch):
    seconds(monkeypatch, 3.9, 1.0)
    monkeypatch.setattr(comparison, "WORTH_REPEATING", 1)
    monkeypatch.setattr(comparison, "CLEARLY", 10.0)
    monkeypatch.setattr(comparison, "_seconds_of_first", lambda *args: (20.0, 1.0))
    j = job(verify=True)
    outcomes = list(Engine(j, None, "auto").run(trials(j)))
    assert {outcome.facts["engine"] for outcome in outcomes} == {"stacked"}


def test_a_stack_that_is_clearly_slower_is_measured_once(monkeypatch):
    seconds(monkeypatch, 3.9, 1.0)
    monkeypatch.setattr(comparison, "WORTH_REPEATING", 1)
    monkeypatch.setattr(comparison, "_seconds_of_first", lambda *args: (20.0, 1.0))
    j = job(verify=True)
    outcomes = list(Engine(j, None, "auto").run(trials(j)))
    assert {outcome.facts["engine"] for outcome in outcomes} == {"alone"}
    assert {str(o.facts["not stacked"]).endswith("[stack-slower]") for o in outcomes} == {True}


def test_a_stack_that_is_asked_for_is_not_compared(monkeypatch):
    seconds(monkeypatch, 100.0, 1.0)
    j = job(verify=True)
    outcomes = list(Engine(j, None, True).run(trials(j)))
    assert {outcome.facts["engine"] for outcome in outcomes} == {"stacked"}


def test_short_trainings_are_not_compared(monkeypatch):
    seconds(monkeypatch, 100.0, 1.0)
    monkeypatch.setattr(comparison, "WORTH_MEASURING", 5)
    j = job(verify=True)
    outcomes = list(Engine(j, None, "auto").run(trials(j)))
    assert {outcome.facts["engine"] for outcome in outcomes} == {"stacked"}


def test_a_comparison_changes_no_loss(monkeypatch):
    monkeypatch.setattr(comparison, "WORTH_MEASURING", 4)
    monkeypatch.setattr(comparison, "MARGIN", 1e9)
    j = job(verify=True)
    compared = list(Engine(j, None, "auto").run(trials(j)))
    forced = list(Engine(j, None, True).run(trials(j)))
    assert [o.losses.tolist() for o in compared] == [o.losses.tolist() for o in forced]
    assert {outcome.facts["engine"] for outcome in compared} == {"stacked"}


@pytest.mark.parametrize(("width", "engine"), [(16, "stacked"), (2048, "alone")])
def test_a_stack_that_has_nothing_to_save_is_not_built(monkeypatch, width, engine):
    """The time of large matrices is that of arithmetic; a stack saves calls only."""
    monkeypatch.setattr(call_overhead, "WORTH", 1)
    j = job(verify=True)
    settings = {"width": width, "rule": "mup", "optimizer": "adamw", "seed": 0}
    rates = [j.trial({**settings, "lr": 10 ** -(2 + k)}) for k in range(2)]
    built: list[int] = []
    make = run.StackedTraining

    def counted(*args, **options):
        built.append(1)
        return make(*args, **options)

    monkeypatch.setattr(run, "StackedTraining", counted)
    outcomes = list(Engine(j, None, "auto").run(rates))
    assert {outcome.facts["engine"] for outcome in outcomes} == {engine}
    assert bool(built) == (engine == "stacked")


def test_the_estimate_changes_no_loss(monkeypatch):
    j = job(verify=True)
    compared: list[list[float]] = []
    for worth in (1, 10**9):
        monkeypatch.setattr(call_overhead, "WORTH", worth)
        compared += [o.losses.tolist() for o in Engine(j, None, "auto").run(trials(j))]
    assert compared[:4] == compared[4:]


# --- compilation on a CPU -------------------------------------------------------------------------


def losses_of(**options):
    return o1.sweep(
        mlp,
        space={"lr": [1e-3, 1e-2], "seed": range(2)},
        widths=[8],
        data=batch,
        steps=4,
        stacked=True,
        device="cpu",
        progress=False,
        **options,
    )


def assert_same(ours, theirs) -> None:
    """Compare all losses, up to rounding."""
    for one, other in zip(as_list(ours), as_list(theirs), strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def as_list(result) -> list[list[float]]:
    return [outcome.losses.tolist() for outcome in result.outcomes.values()]


def test_a_sweep_with_a_program_has_the_same_losses(monkeypatch):
    """The compiler is replaced; the traced step, its inputs and its reuse are real."""
    compiled: list[object] = []

    def compile_graph(operations, inputs, options):
        compiled.append(operations)
        return operations

    monkeypatch.setattr(compiling, "compile_graph", compile_graph)
    compiling.forget_programs()
    found = losses_of(compile=True)
    assert {outcome.facts["compiled"] for outcome in found.outcomes.values()} == {True}
    assert len(compiled) == 1
    expected = losses_of(compile=False)
    assert {outcome.facts["compiled"] for outcome in expected.outcomes.values()} == {False}
    for ours, theirs in zip(as_list(found), as_list(expected), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    losses_of(compile=True)
    assert len(compiled) == 1  # the second study uses the program of the first
    compiling.forget_programs()


def test_a_failed_compilation_is_noted(monkeypatch):
    def fails(*args):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiling, "compile_graph", fails)
    compiling.forget_programs()
    found = losses_of(compile=True)
    assert [note.endswith("[compile-failed]") for note in found.notes] == [True]
    assert as_list(found) == as_list(losses_of(compile=False))


@pytest.mark.slow
def test_a_compiled_sweep():
    compiling.forget_programs()
    found = losses_of(compile=True)
    assert {outcome.facts["compiled"] for outcome in found.outcomes.values()} == {True}
    for ours, theirs in zip(as_list(found), as_list(losses_of(compile=False)), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)


# --- programs that deviate ------------------------------------------------------------------------


class FrozenFactor(FixedStep):
    """Program that repeats the learning rate of its first step, as a captured number would."""

    def __init__(self, stack, *batches):
        super().__init__(stack, batches)
        self.compiled = True
        self.factor: float | None = None

    def __call__(self, *batches, factor=None):
        self.factor = self.factor or factor
        return self.stack.step(*batches, factor=self.factor)


class Rounded(FixedStep):
    """Program whose results are those of the stack but for rounding."""

    def __init__(self, stack, *batches):
        super().__init__(stack, batches)
        self.compiled = True

    def __call__(self, *batches, factor=None):
        losses = self.stack.step(*batches, factor=factor)
        for p in self.stack.parameters.values():
            p.data.mul_(1 + torch.finfo(p.dtype).eps)
        return losses


@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(("program", "used"), [(FrozenFactor, False), (Rounded, True)])
def test_a_program_that_deviates_is_not_used(monkeypatch, program, used, precision):
    monkeypatch.setattr(training, "CompiledStep", program)
    j = job(compile=True, schedule="linear", precision=precision)
    outcomes = {o.key: o for o in run_stacked(j, trials(j))}
    assert {o.facts["compiled"] for o in outcomes.values()} == {used}
    assert {"not compiled" in o.facts for o in outcomes.values()} == {not used}
    rel = 2e-2 if precision == "bfloat16" else 1e-6
    for expected in run_stacked(job(schedule="linear", precision=precision), trials(j)):
        assert outcomes[expected.key].losses == pytest.approx(expected.losses, rel=rel)
