"""A few processes that compute, one question at a time each.

A process is ended if nobody waits for its answer any more, or if it takes too long; another takes
its place. A slider therefore never waits for an old position of itself.
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

# two for a page, which asks for a map and a point at once, and one that is warm if one of them is
# ended
NUMBER = 3
LIMIT = 30.0  # seconds for an answer
POLL = 0.05  # seconds between looks at whether someone still waits
FAILED = 500
TOO_LONG = 503

Answer = tuple[int, bytes]  # HTTP status, JSON


class AbandonedError(Exception):
    """Nobody waits for the answer."""


class Workers:
    """A pool of processes; `ask` may be called from many threads."""

    def __init__(self, number: int = NUMBER, limit: float = LIMIT):
        self._limit = limit
        self._changed = Condition()
        self._open = True
        self._all = [_Worker() for _ in range(number)]
        self._idle = deque(self._all)

    def ask(self, view: str, query: str, gone: Callable[[], bool]) -> Answer:
        """Return the answer; `AbandonedError` as soon as `gone` says that nobody waits."""
        deadline = time.monotonic() + self._limit
        message = f"this takes more than {self._limit:g} seconds here; take smaller sizes"
        too_long = (TOO_LONG, _error(message))
        worker = self._take(deadline, gone)
        if worker is None:
            return too_long
        answer = None
        try:
            answer = worker.ask(json.dumps([view, query]), deadline, gone)
        finally:
            if answer is not None and worker.alive:
                self._give(worker)
            else:
                self._replace(worker)
        return answer or too_long

    def close(self) -> None:
        """End all processes."""
        with self._changed:
            self._open = False
            for worker in self._all:
                worker.end()

    def _take(self, deadline: float, gone: Callable[[], bool]) -> "_Worker | None":
        """Return the worker that was used last, which has most in its caches.

        None if none is free in time.
        """
        with self._changed:
            while self._open and not self._idle:
                self._changed.wait(POLL)
                _check(gone)
                if time.monotonic() > deadline:
                    return None
            if not self._open:
                raise AbandonedError
            return self._idle.pop()

    def _give(self, worker: "_Worker") -> None:
        with self._changed:
            self._idle.append(worker)
            self._changed.notify()

    def _replace(self, worker: "_Worker") -> None:
        """End a worker and start another, which is taken last: it needs a moment to load."""
        with self._changed:
            if self._open:
                worker.end()
                fresh = _Worker()
                self._all[self._all.index(worker)] = fresh
                self._idle.appendleft(fresh)
            self._changed.notify()


class _Worker:
    """One process."""

    alive: bool = True

    def __init__(self) -> None:
        command = [sys.executable, "-m", "orderone.explore.worker"]
        # For small arrays, threads cost more than they bring.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the server
        )
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=self._listen, daemon=True).start()

    def ask(self, question: str, deadline: float, gone: Callable[[], bool]) -> Answer | None:
        """Return the answer, or None if it takes too long."""
        with suppress(OSError):  # a dead process is noticed below
            assert self._process.stdin
            self._process.stdin.write(question.encode() + b"\n")
            self._process.stdin.flush()
        while time.monotonic() < deadline:
            with suppress(Empty):
                status, _, body = self._lines.get(timeout=POLL).partition(b" ")
                self.alive = bool(status)
                if status:
                    return int(status), body.rstrip()
                return FAILED, _error("the calculation broke off")
            _check(gone)
        return None

    def end(self) -> None:
        """Kill the process: it holds nothing that could be lost."""
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
