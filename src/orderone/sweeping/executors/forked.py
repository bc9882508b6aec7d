"""Executor in processes that are forked from this one, with one thread each.

A forked process starts in tens of milliseconds and needs no pickled job, so lambdas and functions
of a script work. It has a copy of the memory of this process, but shares some things with it:
`shared_with_forks` finds them.
"""

import ctypes
import multiprocessing
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from orderone.sweeping.engine import Engine
from orderone.sweeping.executors.processes import Pool
from orderone.sweeping.executors.worker import serve
from orderone.sweeping.sequential import Report
from orderone.sweeping.trial import Trial
from orderone.training.outcome import Outcome

OWN = Path("/proc/self")
OPENMP = re.compile(r"/lib(gomp|iomp|omp)[^/]*\.so[^/]*$")
SIGNAL_AT_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG of prctl
PROGRESS_BAR = "rich."  # its thread holds no lock that trials use


@dataclass(frozen=True)
class Forked:
    workers: int

    def run(
        self, engine: Engine, units: Sequence[Sequence[Trial]], report: Report
    ) -> Iterator[Outcome]:
        def start(theirs: Connection, ours: Sequence[Connection], number: int) -> _Child:
            return _start(engine, theirs, ours)

        pool = Pool(units, start, report)
        try:
            yield from pool.work(min(self.workers, len(units)))
        finally:
            pool.close()


@dataclass(frozen=True)
class _Child:
    """Forked process with the methods of a `subprocess.Popen` that a pool uses."""

    process: BaseProcess

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        status = self.process.exitcode
        if status is None:
            raise subprocess.TimeoutExpired("forked process", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number)

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()


def _start(engine: Engine, theirs: Connection, ours: Sequence[Connection]) -> _Child:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_work, args=(engine, theirs, ours))
    with warnings.catch_warnings():
        # Python 3.12 warns of any other thread, also of those of torch, which wait for work
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    return _Child(process)


def _work(engine: Engine, pipe: Connection, others: Sequence[Connection]) -> None:
    """Train what comes through the pipe; `others` are ends that only the parent must hold."""
    for other in others:
        other.close()  # otherwise this process would not see that the parent has ended
    _end_with_parent()
    # the progress bar is drawn by the parent
    sys.stdout = getattr(sys.stdout, "rich_proxied_file", sys.stdout)
    sys.stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
    torch.set_num_threads(1)
    # The threads of the parent do not exist here, and OpenMP would wait for them forever.
    torch.set_num_threads = _keep_one_thread
    try:
        serve(pipe, engine)
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the sweep has ended
        os._exit(1)


def _end_with_parent() -> None:
    """Let Linux end this process when its parent is killed: it shares the lock of the store."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL)


def _keep_one_thread(number: int) -> None:
    """Do nothing, in the place of `torch.set_num_threads`."""


def shared_with_forks(own: Path | None = None) -> str | None:
    """Return what forked processes would share with this one, so that they could disturb it.

    Return None if there is nothing. `own` is the store of the sweep, which they do not use.
    """
    if sys.platform != "linux":
        return f"{sys.platform} has no safe fork"
    if torch.accelerator.is_available():
        return "torch may have started threads for the GPU, which a fork loses"
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not _draws_progress(thread):
            return f"the thread {thread.name} is running"
    if multiprocessing.active_children() or multiprocessing.parent_process() is not None:
        return "other processes of multiprocessing are running"
    return _open_file(own) or _mapped(own)


def _draws_progress(thread: threading.Thread) -> bool:
    return type(thread).__module__.startswith(PROGRESS_BAR)


def _open_file(own: Path | None) -> str | None:
    """Return an open file whose position, or what it receives, would be shared."""
    standard = [os.fstat(number) for number in range(3) if _is_open(number)]
    for entry in (OWN / "fd").iterdir():
        number = int(entry.name)
        try:
            status = os.fstat(number)
            name = os.readlink(entry)
            flags = int(_field(OWN / "fdinfo" / entry.name, "flags:"), 8)
        except OSError:  # it was open for this loop only
            continue
        if number < 3 or any(os.path.samestat(status, other) for other in standard):
            continue
        if stat.S_ISCHR(status.st_mode) or stat.S_ISDIR(status.st_mode) or _is_own(name, own):
            continue
        if flags & os.O_ACCMODE == os.O_WRONLY or _is_mapped(name):
            continue
        return f"{name} is open"
    return None


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _field(path: Path, name: str) -> str:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return line.removeprefix(name).strip()
    raise OSError(f"{path} has no line {name}")


def _is_own(name: str, own: Path | None) -> bool:
    return own is not None and name.startswith(str(own))


def _is_mapped(name: str) -> bool:
    return any(mapped == name for _, mapped in _mappings())


def _mapped(own: Path | None) -> str | None:
    """Return memory that other processes see, or a second OpenMP, whose threads a fork loses."""
    openmp: set[str] = set()
    for rights, name in _mappings():
        if rights.startswith("rw") and rights.endswith("s") and not _is_own(name, own):
            return f"the memory {name} is shared"
        if OPENMP.search(name):
            openmp.add(name)
    if len(openmp) > 1:
        return f"{len(openmp)} libraries of OpenMP are loaded"
    return None


def _mappings() -> Iterator[tuple[str, str]]:
    """Yield the rights and the file of every part of the memory of this process."""
    for line in (OWN / "maps").read_text().splitlines():
        _, rights, _, _, _, *name = line.split(maxsplit=5)
        yield rights, " ".join(name)
