"""A long sweep on a CPU uses several cores: the same losses, in processes that share nothing."""

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.sweep_subjects import batch, changed, killer, mlp

from orderone.sweeping import cores, sweep
from orderone.sweeping.cores import Rows, divided, rows_of, work_of
from orderone.sweeping.driver import Driver
from orderone.sweeping.executors.forked import shared_with_forks
from orderone.sweeping.job import Job
from orderone.sweeping.result import Sweep
from orderone.sweeping.trial import Trial
from orderone.training.source import Source

SPACE: dict[str, Any] = {"lr": [1e-3, 1e-2], "seed": range(2)}
CALL: dict[str, Any] = {"data": batch, "steps": 40, "device": "cpu", "widths": [8, 16]}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")


@pytest.fixture
def two_cores(monkeypatch):
    """Two usable cores, and any amount of work is worth dividing.

    OpenMP of other packages may be loaded by other tests; one thread does not use it.
    """
    monkeypatch.setattr("orderone.sweeping.driver.usable_cores", lambda job: 2)
    monkeypatch.setattr(cores, "usable_cores", lambda job: 2)
    monkeypatch.setattr(cores, "LEAST", 0.0)
    monkeypatch.setattr(cores, "shared_with_forks", lambda store: None)


def processes_of(found: Sweep) -> int:
    """Return the number of processes that the notes name."""
    [note] = [note for note in found.notes if note.startswith("executor: ")]
    return {"one": 1, "2": 2}[note.split()[1]]


def losses(found: Sweep) -> list[np.ndarray]:
    return [found.outcomes[key].losses for key in found.trials]


@pytest.mark.parametrize("stacked", [True, False])
def test_several_processes_give_the_losses_of_one(two_cores, stacked):
    with_lambdas = {**CALL, "data": lambda step, seed: batch(step, seed)}
    there = sweep(
        lambda width: mlp(width, dropout=0.1), SPACE, stacked=stacked, name="n", **with_lambdas
    )
    here = sweep(
        lambda width: mlp(width, dropout=0.1),
        SPACE,
        stacked=stacked,
        name="n",
        executor="here",
        **with_lambdas,
    )
    assert processes_of(there) == 2
    assert not here.notes
    for one, other in zip(losses(there), losses(here), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5 if stacked else 0)


def test_the_same_study_has_the_same_losses_twice(two_cores):
    first = sweep(mlp, SPACE, **CALL)
    second = sweep(mlp, SPACE, **CALL)
    assert processes_of(first) == 2
    np.testing.assert_array_equal(losses(first), losses(second))


def test_the_random_state_of_the_caller_stays(two_cores):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    sweep(mlp, SPACE, **CALL)
    torch.testing.assert_close(torch.rand(3), expected)


def test_a_model_that_wants_threads_does_not_wait_for_those_of_the_parent(two_cores):
    def build(width: int) -> torch.nn.Module:
        torch.set_num_threads(2)
        return mlp(width)

    threads = torch.get_num_threads()
    try:
        found = sweep(build, SPACE, name="n", **changed(CALL, widths=[64]))
    finally:
        torch.set_num_threads(threads)
    assert processes_of(found) == 2
    assert set(found.frame["status"]) == {"done"}


def test_a_process_that_dies_fails_only_its_trials(two_cores, monkeypatch):
    monkeypatch.setenv("SWEEP_PARENT", str(os.getpid()))
    space = {"lr": [0.01, 0.02], "deadly": [False, True]}
    found = sweep(killer, space, stacked=False, **changed(CALL, widths=[8]))
    for deadly, status in zip(found.frame["deadly"], found.frame["status"], strict=True):
        assert status == ("failed" if deadly else "done")


def test_a_pruner_reaches_forked_processes(two_cores):
    optuna = pytest.importorskip("optuna")
    pruner = optuna.pruners.ThresholdPruner(upper=1e-9)  # stops every trial that reports
    found = sweep(mlp, SPACE, pruner=pruner, **CALL)
    assert set(found.frame["status"]) == {"stopped"}


def test_only_this_process_writes_the_store(two_cores, tmp_path):
    found = sweep(mlp, SPACE, store=tmp_path / "runs.db", **CALL)
    assert processes_of(found) == 2
    stored = Sweep.load(tmp_path / "runs.db")
    for key, outcome in found.outcomes.items():
        np.testing.assert_array_equal(stored.outcomes[key].losses, outcome.losses)
    assert sweep(mlp, SPACE, store=tmp_path / "runs.db", **CALL).ran == 0


INTERRUPTED = """
import os, sys, time
sys.path.insert(0, {folder!r})
from support.sweep_subjects import batch, mlp
import orderone.sweeping.driver as driver
from orderone.sweeping import cores, sweep
driver.usable_cores = cores.usable_cores = lambda job: 2
cores.LEAST = 0.0

def data(step, seed):
    if step == 6 and sys.argv[2] == "slow":
        os.write(1, b"started\\n")  # at once: two processes write this
    if sys.argv[2] == "slow":
        time.sleep(0.1)
    return batch(step, seed)

space = {{"lr": [1e-3, 1e-2], "seed": range(4)}}
found = sweep(mlp, space, data=data, steps=60, widths=[8], device="cpu", name="n",
              store=sys.argv[1], checkpoint_seconds=600.0, progress=False)
print(found.notes)
"""


@pytest.mark.slow
def test_ctrl_c_saves_the_stacks_of_all_processes(tmp_path, start):
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED.format(folder=str(Path(__file__).parents[1])))
    store = tmp_path / "runs.db"
    words = [sys.executable, str(script), str(store)]
    process = start([*words, "slow"], start_new_session=True)
    assert process.stdout.readline() == "started\n"
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
    output, errors = process.communicate(timeout=60)
    assert "Interrupted" in errors, output + errors
    saved = sorted((tmp_path / "runs.db.checkpoints").iterdir())
    assert len(saved) == 2, (saved, errors)
    rest = start([*words, "fast"])
    output, errors = rest.communicate(timeout=120)
    assert rest.returncode == 0, errors
    assert "executor: 2 processes" in output
    resumed = Sweep.load(store)
    fresh = sweep(
        mlp, {"lr": [1e-3, 1e-2], "seed": range(4)}, name="n", **changed(CALL, widths=[8], steps=60)
    )
    by_settings = {str(fresh.trials[key]): fresh.outcomes[key].losses for key in fresh.trials}
    for key, trial in resumed.trials.items():
        np.testing.assert_allclose(resumed.outcomes[key].losses, by_settings[str(trial)], rtol=1e-4)


@pytest.mark.slow
def test_forked_processes_end_when_their_parent_is_killed(tmp_path, start):
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED.format(folder=str(Path(__file__).parents[1])))
    words = [sys.executable, str(script), str(tmp_path / "runs.db")]
    process = start([*words, "slow"], start_new_session=True)
    process.stdout.readline()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while _in_group(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    again = start([*words, "fast"])  # the lock of the store is free
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors


def _in_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# --- what forks would share -----------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """Skip where the test process itself has threads, sockets or another OpenMP."""
    obstacle = shared_with_forks()
    if obstacle is not None:
        pytest.skip(f"this process cannot be forked: {obstacle}")


def test_an_open_file_is_shared(alone, tmp_path):
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"12345678")
    with path.open("rb"):
        assert str(path) in str(shared_with_forks())
    with path.open("ab"):  # several processes may append
        assert shared_with_forks() is None
    table = np.memmap(path, mode="r", dtype=np.uint8)  # has no position
    assert shared_with_forks() is None
    del table
    table = np.memmap(path, mode="r+", dtype=np.uint8)
    assert str(path) in str(shared_with_forks())
    assert shared_with_forks(path) is None  # the store itself
    del table


def test_sockets_threads_and_pipes_are_shared(alone):
    with socket.socket():
        assert shared_with_forks() is not None
    reading, writing = os.pipe()
    assert shared_with_forks() is not None
    os.close(reading)
    assert shared_with_forks() is None
    os.close(writing)
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    assert thread.name in str(shared_with_forks())
    ended.set()
    thread.join()
    assert shared_with_forks() is None


def test_shared_memory_of_tensors_is_found(alone):
    tensor = torch.zeros(3).share_memory_()
    assert shared_with_forks() is not None
    del tensor


def test_what_is_shared_keeps_a_sweep_in_one_process(two_cores, monkeypatch):
    monkeypatch.setattr(cores, "shared_with_forks", lambda store: "a socket is open")
    found = sweep(mlp, SPACE, **CALL)
    assert processes_of(found) == 1


# --- the choice -----------------------------------------------------------------------------------


def job_of(steps: int = 100, **options: Any) -> Job:
    return Job(mlp, Source("signs", batch), steps, name="n", **options)


def test_rows_are_read_from_the_first_tensor():
    ids = torch.zeros(4, 32, dtype=torch.int64)
    assert rows_of((ids, ids)) == Rows(128, 128)
    assert rows_of(torch.zeros(16, 784)) == Rows(16, 16)
    assert rows_of({"x": torch.zeros(2, 5, 7)}) == Rows(10, 10)
    assert rows_of(torch.zeros(8, 3, 10, 10)) == Rows(8, 800)
    assert rows_of(["text"]) == Rows(1, 1)


def test_work_grows_with_steps_tensors_and_weights():
    def seconds(steps: int, shapes: dict[str, tuple[int, ...]]) -> float:
        job = job_of(steps)
        return work_of(job, job.trial({"width": 8}), shapes, Rows(64, 64), 2).one_core

    small = {"weight": (64, 64)}
    assert seconds(200, small) == pytest.approx(2 * seconds(100, small))
    assert seconds(100, {"weight": (4096, 4096)}) > 100 * seconds(100, small)
    assert seconds(100, {**small, "bias": (64,)}) > 1.4 * seconds(100, small)


def test_large_products_use_the_cores_of_one_process():
    job = job_of()
    trial = job.trial({"width": 8})
    large = work_of(job, trial, {"weight": (4096, 4096)}, Rows(4096, 4096), 2)
    small = work_of(job, trial, {"weight": (64, 64)}, Rows(128, 128), 2)
    assert large.one_process < 0.6 * large.one_core
    assert small.one_process > 0.95 * small.one_core


def test_the_longest_units_come_first():
    job = job_of()
    trials = [job.trial({"width": 8, "seed": seed}) for seed in range(4)]
    work = {}
    for trial, rows in zip(trials, (1, 10, 100, 1000), strict=True):
        work[trial.key] = work_of(job, trial, {"weight": (1000, 1000)}, Rows(rows, rows), 1)
    units = [[trial] for trial in trials]
    order, end = divided(units, work, 2)
    assert order == units[::-1]
    assert end == work[trials[3].key].one_core


@pytest.mark.parametrize(
    "options", [{"device": "cuda"}, {"compile": True}], ids=["a GPU", "compiled"]
)
def test_other_ways_use_one_process(options):
    assert cores.usable_cores(job_of(**options)) == 1


def test_one_thread_of_torch_means_one_core(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert cores.usable_cores(job_of()) == 1


@pytest.mark.parametrize(("steps", "processes"), [(2, 1), (20_000, 2)])
def test_only_a_long_study_is_divided(monkeypatch, two_cores, steps, processes):
    monkeypatch.setattr(cores, "LEAST", 2.0)
    division = choice(job_of(steps), {"weight": (8, 8)}, members=4)
    assert division.processes == processes


def test_models_that_may_not_fit_in_memory_twice_stay_in_one_process(monkeypatch, two_cores):
    monkeypatch.setattr(cores, "free_memory", lambda: 1 << 20)
    division = choice(job_of(), {"weight": (1000, 1000)}, members=4)
    assert division.processes == 1
    assert division.obstacle is not None


def test_an_odd_number_of_large_models_stays_in_one_process(two_cores):
    """One process with all cores trains three of them in less time than two processes."""
    job = Job(mlp, Source("vectors", lambda step, seed: torch.zeros(4096, 8)), 1000, name="n")
    assert choice(job, {"weight": (4096, 4096)}, members=3).processes == 1


def choice(job: Job, shapes: dict[str, tuple[int, ...]], members: int) -> cores.Division:
    trials = [job.trial({"width": 8, "seed": seed}) for seed in range(members)]
    units = [[trial] for trial in trials]
    return cores.choose(job, trials, units, {trials[0].program: shapes}, None)


def test_a_named_executor_is_used(two_cores, monkeypatch):
    divisions: list[Trial] = []
    monkeypatch.setattr(Driver, "divide", _recorded(Driver.divide, divisions))
    found = sweep(mlp, SPACE, executor="here", **CALL)
    assert not [note for note in found.notes if note.startswith("executor")]
    assert divisions == [1]


def _recorded(divide: Any, found: list[Any]) -> Any:
    def recorded(self: Driver, *args: Any) -> Any:
        executor, units = divide(self, *args)
        found.append(executor.workers)
        return executor, units

    return recorded


class Counting:
    """Data and loss that count their calls."""

    def __init__(self) -> None:
        self.calls = 0

    def batch(self, step: int, seed: int) -> Any:
        self.calls += 1
        return batch(step, seed)

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.nn.functional.cross_entropy(output, target)


BUILT: list[int] = []


def remembered(width: int) -> torch.nn.Module:
    BUILT.append(width)
    return mlp(width)


def changed_variables() -> dict[str, dict[str, Any]]:
    steps: list[int] = []

    def data(step: int, seed: int) -> Any:
        steps.append(step)
        return batch(step, seed)

    return {
        "a list that data appends to": {"data": data},
        "a global list that build appends to": {"build": remembered},
        "an attribute of the object that has the data": {"data": Counting().batch},
        "an attribute of the object that has the loss": {"loss": Counting().loss},
    }


@pytest.mark.parametrize("case", changed_variables())
def test_what_a_trial_changes_outside_is_changed_in_this_process(two_cores, case):
    call = {"build": mlp, **CALL, **changed_variables()[case]}
    build = call.pop("build")
    found = sweep(build, SPACE, name="changes", **call)
    assert processes_of(found) == 1
