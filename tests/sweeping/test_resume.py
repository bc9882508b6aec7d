"""`kill -9` at any moment, then the same command: no finished trial is lost or run twice."""

import json
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.sweep_subjects import batch, mlp

from orderone.sweeping.result import Sweep
from orderone.sweeping.store import read_store
from orderone.sweeping.sweep import sweep

Begin = Callable[[list[str]], "subprocess.Popen[str]"]
STEPS, SEEDS = 30, 6
PROVED = 2  # steps whose batches the proof of a stack reads, too
SCRIPT = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from support.sweep_subjects import batch, mlp
from orderone.sweeping.sweep import sweep

def data(step, seed):
    time.sleep(0.003)
    with open(sys.argv[2], "a") as log:
        print(seed, step, file=log)
    return batch(step, seed)

if __name__ == "__main__":
    space = {{"lr": 0.01, "seed": range(1, {SEEDS + 1})}}
    found = sweep(mlp, space, widths=[8], data=data, steps={STEPS}, name="net", store=sys.argv[1],
                  stacked=eval(sys.argv[3]), together=3, checkpoint_seconds=0.0, device="cpu")
    print(found.ran)
"""


class Command:
    """The script, its store, and a log of every batch that was requested.

    `begin` starts a process that does not outlive its test.
    """

    def __init__(self, folder: Path, stacked: bool, begin: Begin):
        self.begin = begin
        self.store, self.log = folder / "runs.db", folder / "log"
        (folder / "script.py").write_text(SCRIPT)
        self.words = [
            sys.executable,
            str(folder / "script.py"),
            str(self.store),
            str(self.log),
            str(stacked),
        ]

    def start(self) -> "subprocess.Popen[str]":
        return self.begin(self.words)

    def done(self) -> int:
        return (
            len(read_store(self.store)) if self.store.exists() and self.store.stat().st_size else 0
        )

    def half_run(self) -> bool:
        return any(self.store.with_name("runs.db.checkpoints").glob("*.safetensors"))

    def batches(self) -> Counter[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Counter(
            line for line in lines if not line.startswith("0 ")
        )  # plans use a batch of seed 0


def kill(process: "subprocess.Popen[str]") -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture
def finished(monkeypatch, capsys):
    """Return a function that runs the script to its end in this process, and counts trials."""

    def run(command: Command) -> int:
        monkeypatch.setattr(sys, "argv", command.words[1:])
        runpy.run_path(command.words[1], run_name="__main__")
        return int(capsys.readouterr().out)

    return run


@pytest.mark.parametrize(
    "stacked", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["alone", "stacked"]
)
def test_killed_in_the_middle_and_started_again(tmp_path, finished, stacked, start):
    command = Command(tmp_path, stacked, start)
    process = command.start()
    deadline = time.monotonic() + 200
    while not (command.half_run() and command.done() >= 2) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    kill(process)
    done = command.done()
    assert 2 <= done < SEEDS
    assert finished(command) == SEEDS - done
    found = Sweep.load(command.store)
    assert len(found.frame) == SEEDS
    batches = command.batches()
    later = [count for line, count in batches.items() if int(line.split()[1]) >= PROVED]
    assert max(later) <= 2  # a step after the last checkpoint runs once more
    # In each process, the check of checkpoints and, in stacks, the proof read the first batches.
    # Of trials one after another, the first is begun again, at most twice in both processes.
    assert max(batches.values()) <= (5 if stacked else 4)
    assert sum(batches.values()) <= SEEDS * STEPS + (22 if stacked else 16)
    expected = sweep(
        mlp,
        {"lr": 0.01, "seed": range(1, SEEDS + 1)},
        widths=[8],
        data=batch,
        steps=STEPS,
        name="net",
        device="cpu",
    )
    for key, outcome in expected.outcomes.items():
        np.testing.assert_allclose(found.outcomes[key].losses, outcome.losses, rtol=1e-4)
    assert not command.store.with_name("runs.db.checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stacked", [False, True], ids=["alone", "stacked"])
def test_killed_at_random_moments(tmp_path, finished, stacked, start):
    command, generator = Command(tmp_path, stacked, start), random.Random(0)
    for _ in range(12):
        process = command.start()
        before = command.done()
        time.sleep(generator.uniform(1.0, 4.0))
        kill(process)
        assert command.done() >= before
    done = command.done()
    assert finished(command) == SEEDS - done
    assert len(Sweep.load(command.store).frame) == SEEDS


@pytest.mark.slow
def test_sigterm_leaves_a_checkpoint_and_explains_how_to_continue(tmp_path, finished, start):
    command = Command(tmp_path, False, start)
    process = command.start()
    while not command.done():
        assert process.poll() is None
        time.sleep(0.01)
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "Interrupted" in errors
    done = command.done()
    assert finished(command) == SEEDS - done
    # Not a single step was repeated. But in each process one batch is read to check checkpoints,
    # and at most twice in both, the first trial is begun again.
    assert sum(command.batches().values()) <= SEEDS * STEPS + 2 + 2 * 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["kills", "errors"])
def test_a_hundred_faults_lose_nothing_and_change_nothing(tmp_path, mode):
    words = [sys.executable, "-m", "support.kill_sweeps", mode, "100", str(tmp_path)]
    result = subprocess.run(
        words, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=3000
    )
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts.pop("faults") == 100
    assert facts.pop("sweeps") > 5
    assert facts == {"lost": 0, "twice": 0, "different": 0, "raw": 0}
