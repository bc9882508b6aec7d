"""Ray clusters that die: finished trials are stored, and the same call continues."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.sweep_subjects import batch, mlp

from orderone.sweeping.engine import Engine
from orderone.sweeping.executors.ray import RETRIES, _Tasks
from orderone.sweeping.job import Job
from orderone.sweeping.trial import Trial
from orderone.training.source import Source

TESTS = Path(__file__).parents[1]


def facts_of(mode: str, store: Path) -> dict[str, Any]:
    pytest.importorskip("ray")
    paths = [str(TESTS), os.environ.get("PYTHONPATH", "")]
    words = [sys.executable, "-m", "support.ray_chaos", mode, str(store)]
    result = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=900,
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    assert result.stdout, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_lost_cluster_can_be_caught_and_the_sweep_continues_on_a_new_one(tmp_path):
    facts = facts_of("lost", tmp_path / "runs.db")
    assert 2 <= facts["finished"] < 12
    assert facts["stored"] == facts["finished"]  # 0 lost
    assert facts["ran"] == 12 - facts["finished"]  # 0 run twice
    assert facts["trials"] == 12
    assert facts["different"] == 0


@pytest.mark.slow
def test_random_workers_that_are_killed_change_nothing(tmp_path):
    facts = facts_of("chaos", tmp_path / "runs.db")
    assert facts["kills"] >= 2
    assert facts["ran"] == facts["trials"] == 12
    assert facts["different"] == 0


def test_each_trial_has_a_budget_of_deaths():
    engine = Engine(Job(mlp, Source("numbers", batch), steps=1))
    trials = [Trial({"lr": lr}) for lr in (1e-3, 1e-2, 1e-1)]
    tasks = _Tasks(sys, engine, [trials], lambda step, losses: set(), "cpu")
    died = RuntimeError("the worker died")
    assert list(tasks._exhausted(trials, died)) == []
    first, second = tasks._again(trials)
    assert (list(first), list(second)) == (trials[:2], trials[2:])
    for _ in range(RETRIES - 1):
        assert list(tasks._exhausted(second, died)) == []
        assert tasks._again(second) == [second]
    [outcome] = tasks._exhausted(second, died)
    assert outcome.key == trials[2].key
    assert outcome.error is not None
    assert "4 times" in outcome.error
    assert tasks._again(second) == []
    assert tasks.deaths[trials[0].key] == 1
