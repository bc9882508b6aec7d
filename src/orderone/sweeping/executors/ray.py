"""Executor on a Ray cluster: a unit is a task, which runs again elsewhere if its worker dies.

Only the driver writes the store. Each trial has a budget of tasks that may die with it; a unit of
several trials is divided after such a death, so that one trial that kills its worker does not use
up the budget of the others.

Ray ends the process of the driver 60 s after it has lost the head of the cluster. So this executor
notices the loss itself, closes the connection, and raises an exception.
"""

import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from orderone.core.errors import InputError
from orderone.core.optional import need
from orderone.sweeping.engine import Engine
from orderone.sweeping.executors import WorkersLost
from orderone.sweeping.executors.parcel import unwrapped, wrapped
from orderone.sweeping.sequential import Report, describe
from orderone.sweeping.trial import Trial
from orderone.training import interrupts
from orderone.training.outcome import Outcome
from orderone.training.stacked.errors import NotStackable

RETRIES = 3  # of each trial
_POLL = 0.5  # seconds
_PROBE = 2.0  # seconds between checks of the cluster
_LOST = 15.0  # seconds without an answer; a head may be restarted
_TRANSFER = 20.0  # seconds for the outcomes of a task
_PATIENCE = 5.0  # seconds to wait for the board


class Board:
    """Ray actor to which running trials report losses, and which tells them to stop."""

    def __init__(self) -> None:
        self._reports: list[tuple[int, dict[str, float]]] = []
        self._stopped: set[str] = set()

    def report(self, step: int, losses: dict[str, float]) -> set[str]:
        self._reports.append((step, losses))
        return self._stopped.intersection(losses)

    def take(self) -> list[tuple[int, dict[str, float]]]:
        taken = self._reports
        self._reports = []
        return taken

    def stop(self, keys: set[str]) -> None:
        self._stopped |= keys


def work(parcel: bytes, unit: Sequence[Trial], board: Any, path: Sequence[str]) -> list[Outcome]:
    """Run a unit as a Ray task; if the board is lost with its node, continue without it."""
    ray = need("ray", "ray", "for this executor")
    for folder in path:  # where nodes share a disk
        if folder not in sys.path:
            sys.path.append(folder)

    def report(step: int, losses: Mapping[str, float]) -> set[str]:
        try:
            return ray.get(board.report.remote(step, dict(losses)))
        except ray.exceptions.RayError:
            return set()

    return list(unwrapped(parcel).run(unit, report))


class Ray:
    """Executor on the cluster at `address` ("auto": that of this machine), or on a new one."""

    def __init__(self, workers: int | None, address: str | None, device: str):
        self._ray = need("ray", "ray", "for this executor")
        self._device = device
        if not self._ray.is_initialized():
            self._connect(address, workers)
        self.workers: int = workers or self._slots()

    def _connect(self, address: str | None, workers: int | None) -> None:
        options: dict[str, object] = {}
        if not address:
            options = {"num_cpus": workers, "include_dashboard": False}
        try:
            self._ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
        except ConnectionError as error:
            raise InputError(
                f"address: no Ray cluster at {address!r} ({error}); start one with `ray start"
                " --head`",
                "no-ray-cluster",
                argument="address",
            ) from error

    def _slots(self) -> int:
        if self._device.startswith("cuda"):
            resource = "GPU"
        else:
            resource = "CPU"
        return max(1, int(self._ray.cluster_resources().get(resource, 1)))

    def run(
        self, engine: Engine, units: Sequence[Sequence[Trial]], report: Report
    ) -> Iterator[Outcome]:
        yield from _Tasks(self._ray, engine, units, report, self._device).run()


class Pulse:
    """Checks that the head of the cluster answers, and that this process still has a node there."""

    def __init__(self, ray: ModuleType):
        self._ray = ray
        context = ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        self.address: str = context.gcs_address
        self._place: tuple[str, int] = (host, int(port))
        self._node: str = context.get_node_id()
        self._checked: float = time.monotonic()
        self._answered: float = self._checked
        self._reachable: bool = self._head_answers()  # not through a Ray client (ray://)

    def check(self) -> None:
        """Raise WorkersLost, and close the connection, if the cluster is lost."""
        now = time.monotonic()
        if not self._reachable or now - self._checked < _PROBE:
            return
        self._checked = now
        if self._head_answers() and self._node_is_alive():
            self._answered = now
        elif now - self._answered > _LOST:
            self._ray.shutdown()
            raise WorkersLost(f"the Ray cluster at {self.address} has not answered for {_LOST:g} s")

    def _head_answers(self) -> bool:
        try:
            socket.create_connection(self._place, timeout=_PROBE).close()
        except OSError:
            return False
        return True

    def _node_is_alive(self) -> bool:
        for node in self._ray.nodes():
            if node["NodeID"] == self._node:
                return bool(node["Alive"])
        return False


@dataclass
class _Tasks:
    ray: ModuleType
    engine: Engine
    units: Sequence[Sequence[Trial]]
    report: Report
    device: str
    deaths: dict[str, int] = field(default_factory=dict)  # of the workers of each trial

    def run(self) -> Iterator[Outcome]:
        pulse = Pulse(self.ray)
        board = self._board()
        submit = self._submission(board)
        running: dict[Any, Sequence[Trial]] = {}
        try:
            for unit in self.units:
                running[submit(unit)] = unit
            while running:
                ready, _ = self.ray.wait(list(running), timeout=_POLL)
                pulse.check()
                self._exchange(board)
                for reference in ready:
                    unit = running.pop(reference)
                    error = self._death(reference)
                    if error is None:
                        yield from self._outcomes(reference, unit)
                        continue
                    yield from self._exhausted(unit, error)
                    for part in self._again(unit):
                        running[submit(part)] = part
                if interrupts.pending():
                    raise KeyboardInterrupt
        finally:
            if self.ray.is_initialized():
                for reference in running:
                    self.ray.cancel(reference, force=True)
                self.ray.kill(board)

    def _board(self) -> Any:
        """Start the board, on this node if possible; Ray restarts it if its node dies."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(
            self.ray.get_runtime_context().get_node_id(), soft=True
        )
        return (
            self.ray.remote(Board)
            .options(num_cpus=0, scheduling_strategy=here, max_restarts=-1)
            .remote()
        )

    def _submission(self, board: Any) -> Callable[[Sequence[Trial]], Any]:
        """Return a function that submits a unit.

        The code and the engine are sent to the cluster now: a cluster that is lost later would
        block this process until it is ended.
        """
        gpus = 1 if self.device.startswith("cuda") else 0
        task = self.ray.remote(work).options(max_retries=0, num_cpus=1, num_gpus=gpus)
        parcel = self.ray.put(wrapped(self.engine))
        return lambda unit: task.remote(parcel, unit, board, sys.path)

    def _exchange(self, board: Any) -> None:
        """Pass reports to the sweep, and its decisions to the board.

        Reports that are lost with a board concern only the progress bar and the pruner.
        """
        stopped: set[str] = set()
        try:
            reports = self.ray.get(board.take.remote(), timeout=_PATIENCE)
        except (self.ray.exceptions.RayError, TimeoutError):
            reports = []
        for step, losses in reports:
            stopped |= self.report(step, losses)
        if stopped:
            board.stop.remote(stopped)

    def _death(self, reference: Any) -> Exception | None:
        """Return the error of a task whose worker or node died; None if it has ended itself."""
        try:
            self.ray.get(reference, timeout=_TRANSFER)
        except self.ray.exceptions.RayTaskError:
            return None
        except self.ray.exceptions.RayError as error:
            return error
        return None

    def _exhausted(self, unit: Sequence[Trial], error: Exception) -> Iterator[Outcome]:
        """Count a death for each trial of the unit; yield errors of those without budget."""
        lines = str(error).splitlines() or [""]
        for trial in unit:
            self.deaths[trial.key] = self.deaths.get(trial.key, 0) + 1
            if self.deaths[trial.key] > RETRIES:
                text = f"{type(error).__name__}: {lines[0]}"
                text += f" (its worker died {self.deaths[trial.key]} times)"
                yield Outcome(trial.key, error=text)

    def _again(self, unit: Sequence[Trial]) -> list[Sequence[Trial]]:
        """Return the trials of the unit that may run again, in two parts."""
        left = [trial for trial in unit if self.deaths[trial.key] <= RETRIES]
        half = (len(left) + 1) // 2
        return [part for part in (left[:half], left[half:]) if part]

    def _outcomes(self, reference: Any, unit: Sequence[Trial]) -> Iterator[Outcome]:
        try:
            yield from self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, NotStackable):
                raise error.cause from None
            for trial in unit:
                yield Outcome(trial.key, error=describe(error.cause))
