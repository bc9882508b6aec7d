"""Executor in other processes of this machine.

If a worker dies, its unfinished trials are tried once more; nothing else is lost.
"""

import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Protocol, runtime_checkable

from orderone.core.errors import InputError
from orderone.sweeping.engine import Engine
from orderone.sweeping.executors.parcel import wrapped
from orderone.sweeping.sequential import Report
from orderone.sweeping.trial import Trial
from orderone.training import interrupts
from orderone.training.outcome import Outcome

TRIES = 2  # runs of a trial whose worker dies
GRACE = 30.0  # seconds for workers to save their state
_GONE = (EOFError, BrokenPipeError, ConnectionResetError)


@runtime_checkable
class Process(Protocol):
    """Methods of a `subprocess.Popen` that a pool uses."""

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


# Start a process that gets the first end of a pipe. The other arguments: ends that only this
# process must hold (that pipe's and those of other workers), and the number of workers before it.
Start = Callable[[Connection, Sequence[Connection], int], Process]


@dataclass
class _Worker:
    process: Process
    pipe: Connection
    unit: dict[str, Trial] = field(default_factory=dict)  # trials without an outcome
    tries: int = 0


@dataclass(frozen=True)
class Processes:
    workers: int
    device: str

    def run(
        self, engine: Engine, units: Sequence[Sequence[Trial]], report: Report
    ) -> Iterator[Outcome]:
        parcel = wrapped(engine)

        def start(theirs: Connection, ours: Sequence[Connection], number: int) -> Process:
            process = _program(theirs)
            with suppress(*_GONE):
                ours[-1].send(self.setup(number))
                ours[-1].send_bytes(parcel)
            return process

        pool = Pool(units, start, report)
        try:
            yield from pool.work(min(self.workers, len(units)))
        finally:
            pool.close()

    def setup(self, number: int) -> dict[str, object]:
        """Return what the worker with this number needs before the job."""
        import torch

        threads = max(1, torch.get_num_threads() // self.workers)
        return {
            "path": sys.path,
            "threads": threads,
            "device": self.device_of(number),
            "processes": self.workers,
        }

    def device_of(self, number: int) -> str:
        """Return the device of a worker; workers are distributed over the GPUs."""
        import torch

        if self.device != "cuda":
            return self.device
        return f"cuda:{number % torch.cuda.device_count()}"


def _program(pipe: Connection) -> "subprocess.Popen[bytes]":
    """Start the program of a worker."""
    command = [sys.executable, "-m", "orderone.sweeping.executors.worker", str(pipe.fileno())]
    return subprocess.Popen(command, pass_fds=[pipe.fileno()], stdin=subprocess.DEVNULL)


class Pool:
    """Workers of one run, and the units that are left to do."""

    def __init__(self, units: Sequence[Sequence[Trial]], start: Start, report: Report):
        self.queue: deque[tuple[list[Trial], int]] = deque()
        for unit in units:
            self.queue.append((list(unit), 1))
        self.start_process = start
        self.report = report
        self.workers: list[_Worker] = []
        self.started: int = 0

    def work(self, number: int) -> Iterator[Outcome]:
        for _ in range(number):
            self.start()
        deadline = None
        while any(worker.unit for worker in self.workers) or (self.queue and deadline is None):
            if interrupts.pending() and deadline is None:
                deadline = time.monotonic() + GRACE
                self.ask_to_stop()
            if deadline is not None and time.monotonic() > deadline:
                break
            while deadline is None and self.queue and len(self.workers) < number:
                self.start()
            for pipe in wait([worker.pipe for worker in self.workers], timeout=0.2):
                worker = next(worker for worker in self.workers if worker.pipe is pipe)
                yield from self.listen(worker, stopping=deadline is not None)
        if deadline is not None:
            raise KeyboardInterrupt

    def listen(self, worker: _Worker, stopping: bool) -> Iterator[Outcome]:
        try:
            message = worker.pipe.recv()
            if message[0] == "outcome":
                worker.unit.pop(message[1].key, None)
                yield message[1]
            elif message[0] == "report":
                worker.pipe.send(self.report(message[1], message[2]))
            elif message[0] == "free" and not stopping:
                self.give(worker)
            elif message[0] == "not stackable":
                raise message[1]
            elif message[0] == "broken":
                raise InputError(
                    f"executor: a worker process cannot load the job ({message[1]}); check that the"
                    " module of build, data and loss can be imported there",
                    "job-not-picklable",
                    argument="executor",
                )
        except _GONE:
            yield from self.retry(worker, stopping)

    def start(self) -> None:
        ours, theirs = Pipe()
        held = [worker.pipe for worker in self.workers] + [ours]
        process = self.start_process(theirs, held, self.started)
        theirs.close()
        worker = _Worker(process, ours)
        self.workers.append(worker)
        self.started += 1
        self.give(worker)

    def give(self, worker: _Worker) -> None:
        unit: list[Trial] = []
        worker.tries = 0
        if self.queue:
            unit, worker.tries = self.queue.popleft()
        worker.unit = {trial.key: trial for trial in unit}
        with suppress(*_GONE):  # `listen` handles a worker that has died
            worker.pipe.send(unit or None)

    def retry(self, worker: _Worker, stopping: bool) -> Iterator[Outcome]:
        """Queue the trials of a dead worker again, one by one, to find the one that killed it."""
        self.workers.remove(worker)
        worker.pipe.close()
        status = worker.process.wait()
        if stopping:
            return
        for trial in worker.unit.values():
            if worker.tries < TRIES:
                self.queue.append(([trial], worker.tries + 1))
            else:
                yield Outcome(
                    trial.key,
                    error=f"its worker process died {TRIES} times, the last time {_cause(status)}",
                )

    def ask_to_stop(self) -> None:
        for worker in self.workers:
            worker.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            worker.process.terminate()
            try:
                worker.process.wait(timeout=5.0)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


def _cause(status: int) -> str:
    if status >= 0:
        return f"with status {status}"
    if -status not in signal.valid_signals():
        return f"by signal {-status}"
    name = signal.Signals(-status).name
    if name == "SIGKILL":
        return f"by {name} (out of memory?)"
    return f"by {name}"
