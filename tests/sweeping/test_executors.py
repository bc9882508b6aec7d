"""Other processes and machines give bit-identical results, also if some of them die."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from support.errors import refuses
from support.sweep_subjects import batch, changed, killer, mlp

from orderone.sweeping.executors import parcel, read_executor
from orderone.sweeping.result import Sweep
from orderone.sweeping.sweep import sweep

SPACE: dict[str, Any] = {"lr": [1e-3, 1e-2], "seed": range(2)}
CALL: dict[str, Any] = {"widths": [8, 16], "data": batch, "steps": 6, "device": "cpu"}


def same(one: Sweep, other: Sweep) -> None:
    assert list(one.outcomes) == list(other.outcomes)
    for key, outcome in one.outcomes.items():
        assert other.outcomes[key].error is None, other.outcomes[key].error
        np.testing.assert_array_equal(other.outcomes[key].losses, outcome.losses)


@pytest.fixture
def findable(monkeypatch):
    """Make the functions of this folder importable in workers."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_processes_give_the_same_results(tmp_path, findable, workers):
    here = sweep(mlp, SPACE, stacked=False, **CALL)
    scale = 1.0
    there = sweep(  # lambdas and their captured values are sent too
        lambda width: mlp(width),
        SPACE,
        stacked=False,
        executor="processes",
        workers=workers,
        store=tmp_path / "runs.db",
        name="net",
        **changed(
            CALL, data=lambda step, seed: (batch(step, seed)[0] * scale, batch(step, seed)[1])
        ),
    )
    losses = [[found.outcomes[key].losses for key in found.trials] for found in (here, there)]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert len(Sweep.load(tmp_path / "runs.db").frame) == 8


def test_trials_of_workers_that_die_are_tried_again_and_reported(tmp_path, monkeypatch):
    deadly = tmp_path / "python"
    deadly.write_text(f"#!/bin/sh\necho >> {tmp_path}/starts\nkill -9 $$\n")
    deadly.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(deadly))
    found = sweep(
        mlp,
        {"lr": [0.01, 0.02]},
        executor="processes",
        workers=2,
        stacked=False,
        **changed(CALL, widths=[8]),
    )
    assert set(found.frame["status"]) == {"failed"}
    assert len(found.notes) == 2
    assert all("died 2 times" in note and "SIGKILL" in note for note in found.notes)
    assert len((tmp_path / "starts").read_text().splitlines()) == 4  # two trials, two tries


@pytest.mark.slow
def test_a_worker_that_dies_fails_only_its_trials(findable, monkeypatch):
    monkeypatch.setenv("SWEEP_PARENT", str(os.getpid()))
    space = {"lr": [0.01], "deadly": [False, True]}
    found = sweep(
        killer, space, executor="processes", workers=1, stacked=False, **changed(CALL, widths=[8])
    )
    assert found.frame.set_index("deadly")["status"].to_dict() == {False: "done", True: "failed"}
    [note] = found.notes
    assert "died 2 times" in note
    assert "SIGKILL" in note


@pytest.mark.slow
def test_a_pruner_reaches_other_processes(findable):
    optuna = pytest.importorskip("optuna")
    pruner = optuna.pruners.ThresholdPruner(upper=1e-9)  # stops every trial that reports
    found = sweep(
        mlp, {"lr": 0.01}, executor="processes", workers=1, pruner=pruner, **changed(CALL, steps=40)
    )
    assert set(found.frame["status"]) == {"stopped"}
    assert set(found.frame["steps"]) == {2}


UNGUARDED = """
import torch
from orderone.sweeping.sweep import sweep

def build(width):
    first, last = torch.nn.Linear(4, width), torch.nn.Linear(width, 3)
    return torch.nn.Sequential(first, torch.nn.ReLU(), last)

def data(step, seed):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed + step))
    return x, (x[:, 0] > 0).long()

options = {"widths": [8], "data": data, "steps": 3, "executor": "processes", "workers": 1}
print(sweep(build, {"lr": [0.01, 0.1]}, **options).summary)
"""


@pytest.mark.slow
def test_a_script_needs_no_main_guard(tmp_path):
    (tmp_path / "script.py").write_text(UNGUARDED)
    result = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=120
    )
    assert result.stdout == "2 trials: 2 done\n", result.stderr


def test_without_cloudpickle_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with refuses("job-not-picklable", argument="executor") as caught:
        sweep(lambda width: mlp(width), SPACE, executor="processes", workers=1, **CALL)
    assert "pip install cloudpickle" in str(caught.value)


def test_a_job_that_cannot_be_pickled_is_refused():
    lock = Lock()
    with refuses("job-not-picklable", argument="executor") as caught:
        sweep(
            lambda width: mlp(width + lock.locked()),
            SPACE,
            executor="processes",
            workers=1,
            name="net",
            **CALL,
        )
    assert "lock" in str(caught.value)
    assert "pip install" not in str(caught.value)


def test_executors_are_read():
    assert read_executor(None, None, None, "cpu") is None  # the sweep chooses
    here = read_executor("here", None, None, "cpu")
    processes = read_executor("processes", None, None, "cpu")
    assert here is not None
    assert here.workers == 1
    assert processes is not None
    assert processes.workers >= 1
    with refuses("invalid-argument", argument="workers"):
        read_executor("processes", 0, None, "cpu")
    assert parcel.REMEDY


# --- Ray ------------------------------------------------------------------------------------------

RAY = """
import os, sys, time
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
sys.path.insert(0, {folder!r})
import ray
from ray.cluster_utils import Cluster
from support.sweep_subjects import batch, mlp
from orderone.sweeping.sweep import sweep

def slow(step, seed):
    time.sleep({pause})
    return batch(step, seed)

head = {{"num_cpus": 1, "include_dashboard": False}}  # the driver is on this node
cluster = Cluster(initialize_head=True, head_node_args=head)
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
second = cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
assert len([node for node in ray.nodes() if node["Alive"]]) == 2
if {kill}:
    import threading
    threading.Timer(8.0, lambda: cluster.remove_node(second, allow_graceful=False)).start()
space = {{"lr": [1e-3, 1e-2], "seed": range(2)}}
found = sweep(mlp, space, widths=[8, 16], data=slow, steps=6, device="cpu", name="net",
              executor="ray", stacked=False, store=sys.argv[1])
print(found.summary, flush=True)
print(*found.notes, file=sys.stderr)
if {kill}:
    print(len([node for node in ray.nodes() if node["Alive"]]), "node left")
ray.shutdown()
cluster.shutdown()
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True], ids=["two nodes", "one is killed"])
def test_a_ray_cluster_gives_the_same_results(tmp_path, killed):
    pytest.importorskip("ray")
    here = sweep(mlp, SPACE, stacked=False, name="net", **CALL)
    script = tmp_path / "script.py"
    script.write_text(
        RAY.format(folder=str(Path(__file__).parents[1]), kill=killed, pause=0.7 if killed else 0.0)
    )
    words = [sys.executable, str(script), str(tmp_path / "runs.db")]
    path = os.pathsep.join(
        os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p
    )
    result = subprocess.run(
        words, capture_output=True, text=True, timeout=400, env=os.environ | {"PYTHONPATH": path}
    )
    lines = result.stdout.splitlines()
    assert "8 trials: 8 done" in lines, result.stdout + result.stderr
    assert ("1 node left" in lines) == killed
    there = Sweep.load(tmp_path / "runs.db")
    assert len(there.frame) == 8
    by_settings = [
        {str(t): s.outcomes[k].losses for k, t in s.trials.items()} for s in (here, there)
    ]
    for settings, losses in by_settings[0].items():
        np.testing.assert_array_equal(losses, by_settings[1][settings])
