"""A sweep on a Ray cluster under adversity: `python -m support.ray_chaos MODE STORE`.

- lost: the whole cluster is killed during the sweep; the sweep is repeated on a new one.
- chaos: a random worker is killed every four seconds, eight times.

It prints one line of JSON. It is a program of its own: Ray may end the process that has called it.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from orderone.sweeping import ClusterLost, Sweep, sweep
from orderone.sweeping.executors import ray as ray_executor
from support.sweep_subjects import batch, mlp

SPACE: dict[str, Any] = {"lr": [1e-3, 3e-3, 1e-2], "seed": range(2)}
TRAINING: dict[str, Any] = {"widths": [8, 16], "steps": 6, "device": "cpu", "name": "net"}

KILLS = 8


def slow_batch(step: int, seed: int) -> Any:
    time.sleep(0.1)
    return batch(step, seed)


def run(store: str | None, **options: Any) -> Sweep:
    chosen = {"data": slow_batch, "executor": "ray", "workers": 2, "stacked": False}
    return sweep(mlp, SPACE, store=store, progress=False, **TRAINING, **(chosen | options))


def processes(of: int, name: str) -> list[int]:
    """Return the descendants of a process whose name contains this text."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True)
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    inside = {of}
    for _ in range(4):  # generations
        inside |= {int(row[0]) for row in rows if int(row[1]) in inside}
    return [int(row[0]) for row in rows if int(row[0]) in inside and name in row[2][:200]]


def kill_cluster(store: str) -> None:
    """Kill head and node as soon as some trials are stored."""
    while not os.path.exists(store) or len(Sweep.load(store).outcomes) < 2:
        time.sleep(0.2)
    for pid in [*processes(os.getpid(), "gcs_server"), *processes(os.getpid(), "raylet/raylet")]:
        os.kill(pid, signal.SIGKILL)


def kill_workers(kills: list[int], ended: threading.Event) -> None:
    generator = random.Random(0)
    while len(kills) < KILLS and not ended.wait(4.0):
        workers = processes(os.getpid(), "ray::work")
        if workers:
            chosen = generator.choice(workers)
            os.kill(chosen, signal.SIGKILL)
            kills.append(chosen)


def lost(store: str) -> dict[str, Any]:
    threading.Thread(target=kill_cluster, args=[store], daemon=True).start()
    finished = -1
    try:
        run(store)
    except ClusterLost as error:
        finished = sum(outcome.finished for outcome in error.sweep.outcomes.values())
    stored = len(Sweep.load(store).outcomes)
    again = run(store)
    return {"finished": finished, "stored": stored, "ran": again.ran}


def chaos(store: str) -> dict[str, Any]:
    ray_executor.RETRIES = KILLS  # all of them may hit one trial
    kills: list[int] = []
    ended = threading.Event()
    killer = threading.Thread(target=kill_workers, args=[kills, ended])
    killer.start()
    found = run(store)
    ended.set()
    killer.join()
    return {"kills": len(kills), "ran": found.ran}


def main(mode: str, store: str) -> None:
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    facts = {"lost": lost, "chaos": chaos}[mode](store)
    here = run(None, executor="here", workers=None, data=batch)
    there = Sweep.load(store)
    facts["trials"] = len(there.outcomes)
    facts["different"] = 0
    by_settings = {str(there.trials[key]): there.outcomes[key] for key in there.trials}
    for key, outcome in here.outcomes.items():
        other = by_settings[str(here.trials[key])]
        facts["different"] += other.losses.tolist() != outcome.losses.tolist()
    print(json.dumps(facts), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
