"""A pool of processes that compute; each answers one question at a time.

A process is ended if its answer is no longer needed or takes too long, and a new one replaces it. A
slider therefore never waits for the answer to an earlier position.

A process measures its processor time, and ends a calculation at the limit (`worker.py`). The time
of day is limited only for processes that do not answer at all: on a busy machine, or while a
process still imports torch, an answer may take many times its processor time.
"""

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Condition, Thread

from orderone.core.errors import with_code
from orderone.explore.worker import TOO_LONG

# two for a page, which requests a map and a point at the same time, and one in reserve in case one
# of them is ended
NUMBER = 3
LIMIT = 30.0  # seconds of processor time for an answer
PATIENCE = 4.0  # times the limit: the time of day for an answer, with the wait for a free process
POLL = 0.05  # seconds between checks whether the answer is still needed
FAILED = 500

Answer = tuple[int, bytes]  # HTTP status, JSON


class AbandonedError(Exception):
    """The answer is no longer needed: the browser closed the connection."""


class Workers:
    """A pool of processes; `ask` may be called from many threads."""

    def __init__(self, number: int = NUMBER, limit: float = LIMIT):
        self._limit = limit
        self._changed = Condition()
        self._open = True
        self._all = [_Worker(limit) for _ in range(number)]
        self._idle = deque(self._all)

    def ask(self, view: str, query: str, gone: Callable[[], bool]) -> Answer:
        """Return the answer; raise AbandonedError as soon as `gone` returns True."""
        seconds = PATIENCE * self._limit
        deadline = time.monotonic() + seconds
        message = f"no answer in {seconds:g} seconds: the machine is busy; try again later"
        too_late = (TOO_LONG, _error(with_code(message, "too-slow")))
        worker = self._take(deadline, gone)
        if worker is None:
            return too_late
        answer = None
        try:
            answer = worker.ask(json.dumps([view, query]), deadline, gone)
        finally:
            if answer is not None and worker.alive:
                self._give(worker)
            else:
                self._replace(worker)
        return answer or too_late

    def close(self) -> None:
        """End all processes."""
        with self._changed:
            self._open = False
            for worker in self._all:
                worker.end()

    def _take(self, deadline: float, gone: Callable[[], bool]) -> "_Worker | None":
        """Return the most recently used worker, which has the warmest caches.

        Return None if no worker is free before the deadline.
        """
        with self._changed:
            while self._open and not self._idle:
                self._changed.wait(POLL)
                _check(gone)
                if time.monotonic() > deadline:
                    return None
            if not self._open:
                raise AbandonedError
            worker = self._idle.pop()
            if worker.running:
                return worker
            return self._restarted(worker)

    def _give(self, worker: "_Worker") -> None:
        with self._changed:
            self._idle.append(worker)
            self._changed.notify()

    def _replace(self, worker: "_Worker") -> None:
        """End a worker and start another at the end of the queue, since it needs time to load."""
        with self._changed:
            if self._open:
                self._idle.appendleft(self._restarted(worker))
            self._changed.notify()

    def _restarted(self, worker: "_Worker") -> "_Worker":
        """Return a new worker in the place of one that has ended, or is ended here."""
        worker.end()
        fresh = _Worker(self._limit)
        self._all[self._all.index(worker)] = fresh
        return fresh


class _Worker:
    """One process."""

    alive: bool = True

    def __init__(self, limit: float) -> None:
        command = [sys.executable, "-m", "orderone.explore.worker", str(limit)]
        # For small arrays, threads cost more time than they save.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the server only
        )
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()

    def ask(self, question: str, deadline: float, gone: Callable[[], bool]) -> Answer | None:
        """Return the answer, or None if there is none before the deadline."""
        with suppress(OSError):  # the loop below notices a dead process
            assert self._process.stdin
            self._process.stdin.write(question.encode() + b"\n")
            self._process.stdin.flush()
        while time.monotonic() < deadline:
            with suppress(Empty):
                status, _, body = self._lines.get(timeout=POLL).partition(b" ")
                self.alive = status not in (b"", str(TOO_LONG).encode())
                if status:
                    return int(status), body.rstrip()
                message = "the calculation ended without an answer; change a value to try again"
                return FAILED, _error(with_code(message, "stopped-unexpectedly"))
            _check(gone)
        return None

    @property
    def running(self) -> bool:
        """Whether the process runs; another program may have ended it."""
        return self._process.poll() is None

    def end(self) -> None:
        """Kill the process; it has no state to save."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert pipe
                pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout
        with suppress(OSError, ValueError):  # closed by `end`
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(b"")


def _check(gone: Callable[[], bool]) -> None:
    if gone():
        raise AbandonedError


def _error(message: str) -> bytes:
    return json.dumps({"error": message}).encode()
