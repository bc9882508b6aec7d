"""Sweeps that are killed, or that cannot write, again and again: `python -m support.kill_sweeps`.

    python -m support.kill_sweeps kills 100 FOLDER [SEED]
    python -m support.kill_sweeps errors 100 FOLDER [SEED]

"kills" starts a sweep in a child process, kills it with SIGKILL at a random moment, and starts it
again, until it ends. "errors" limits the size of the files that the child may write (RLIMIT_FSIZE):
from a random place on, every write of the database and of checkpoints fails, as on a full disk.
Sweeps alternate between stacked and one after another. It prints one line of JSON:

    lost       trials that were stored once and are not stored later
    twice      trials that were stored and were trained again (another duration is stored)
    different  trials whose losses differ from those of a sweep without faults
"""

import json
import os
import random
import resource
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from orderone.sweeping.store import read_store
from orderone.sweeping.sweep import sweep
from support.sweep_subjects import batch, mlp

SPACE: dict[str, Any] = {"lr": [1e-3, 1e-2], "seed": range(4)}
TRAINING: dict[str, Any] = {"widths": [8], "steps": 12, "device": "cpu", "name": "net"}
EXECUTION: dict[str, Any] = {"together": 3, "checkpoint_seconds": 0.0, "progress": False}
LARGEST_FILE = 60_000  # bytes; the log of the database gets larger
Rows = dict[str, tuple[float, list[float]]]


def slow_batch(step: int, seed: int) -> Any:
    time.sleep(0.002)
    return batch(step, seed)


def run(store: Path | None, stacked: bool) -> None:
    sweep(mlp, SPACE, data=slow_batch, store=store, stacked=stacked, **TRAINING, **EXECUTION)


def start(store: Path, stacked: bool, largest_file: int | None) -> int:
    """Run a sweep in a child process; return its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        run(store, stacked)
        status = 0
    except Exception as error:
        status = 2 if isinstance(error, ValueError | OSError) else 3
    finally:
        os._exit(status)


def stored(store: Path) -> Rows:
    """Return duration and losses of every finished trial, by key."""
    if not store.exists() or not store.stat().st_size:
        return {}
    rows: Rows = {}
    for key, (_, outcome) in read_store(store).items():
        if outcome.finished:
            rows[key] = (outcome.seconds, outcome.losses.tolist())
    return rows


class Count:
    """Faults so far, and what they did."""

    def __init__(self, reference: Rows):
        self.reference = reference
        self.numbers = {"faults": 0, "sweeps": 0, "lost": 0, "twice": 0, "different": 0, "raw": 0}

    def compare(self, before: Rows, now: Rows) -> None:
        for key, row in before.items():
            if key not in now:
                self.numbers["lost"] += 1
            elif now[key] != row:
                self.numbers["twice"] += 1
        for key, (_, losses) in now.items():
            self.numbers["different"] += losses != self.reference[key][1]


def reference(folder: Path, stacked: bool) -> tuple[Rows, float]:
    """Return the rows of a sweep without faults, and its duration."""
    started = time.monotonic()
    run(folder / f"reference-{stacked}.db", stacked)
    return stored(folder / f"reference-{stacked}.db"), time.monotonic() - started


def main(mode: str, faults: int, folder: Path, seed: int = 0) -> None:
    warnings.simplefilter("ignore")
    generator = random.Random(seed)
    numbers: dict[str, int] = {}
    counts: dict[bool, Count] = {}
    durations: dict[bool, float] = {}
    for stacked in (False, True):
        rows, durations[stacked] = reference(folder, stacked)
        counts[stacked] = Count(rows)
    done = 0
    number = 0
    while done < faults:
        stacked = number % 2 == 1
        count = counts[stacked]
        store = folder / f"runs-{number}.db"
        before: Rows = {}
        while True:
            fault = done < faults
            largest = None
            if mode == "errors" and fault:
                largest = generator.randrange(0, LARGEST_FILE)
            child = start(store, stacked, largest)
            if mode == "kills" and fault:
                time.sleep(generator.random() * 0.7 * durations[stacked])
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            count.numbers["raw"] += os.waitstatus_to_exitcode(status) == 3
            now = stored(store)
            count.compare(before, now)
            before = now
            complete = len(now) == len(count.reference)
            if fault and not complete:  # otherwise the sweep has ended before its fault
                done += 1
                count.numbers["faults"] += 1
            if complete:
                break
        count.numbers["sweeps"] += 1
        number += 1
    for count in counts.values():
        for name, value in count.numbers.items():
            numbers[name] = numbers.get(name, 0) + value
    print(json.dumps(numbers))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
