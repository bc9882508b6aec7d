"""Executor on a Ray cluster: a unit is a task, which runs again elsewhere if its node dies.

Only the driver writes the store.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from orderone.core.errors import InputError
from orderone.core.optional import need
from orderone.sweeping.engine import Engine
from orderone.sweeping.executors.parcel import unwrapped, wrapped
from orderone.sweeping.sequential import Report, describe
from orderone.sweeping.trial import Trial
from orderone.training import interrupts
from orderone.training.outcome import Outcome
from orderone.training.stacked.errors import NotStackable

RETRIES = 3
_POLL = 0.5  # seconds
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
        resource = "GPU" if self._device.startswith("cuda") else "CPU"
        return max(1, int(self._ray.cluster_resources().get(resource, 1)))

    def run(
        self, engine: Engine, units: Sequence[Sequence[Trial]], report: Report
    ) -> Iterator[Outcome]:
        yield from _Tasks(self._ray, engine, units, report, self._device).run()


@dataclass
class _Tasks:
    ray: ModuleType
    engine: Engine
    units: Sequence[Sequence[Trial]]
    report: Report
    device: str

    def run(self) -> Iterator[Outcome]:
        board = self._board()
        running = {}
        try:
            running |= self._submit(board)
            while running:
                ready, _ = self.ray.wait(list(running), timeout=_POLL)
                self._exchange(board)
                for reference in ready:
                    yield from self._outcomes(reference, running.pop(reference))
                if interrupts.pending():
                    raise KeyboardInterrupt
        finally:
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

    def _submit(self, board: Any) -> dict[Any, Sequence[Trial]]:
        parcel = self.ray.put(wrapped(self.engine))
        gpus = 1 if self.device.startswith("cuda") else 0
        task = self.ray.remote(work).options(max_retries=RETRIES, num_cpus=1, num_gpus=gpus)
        return {task.remote(parcel, unit, board, sys.path): unit for unit in self.units}

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

    def _outcomes(self, reference: Any, unit: Sequence[Trial]) -> Iterator[Outcome]:
        try:
            yield from self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, NotStackable):
                raise error.cause from None
            for trial in unit:
                yield Outcome(trial.key, error=describe(error.cause))
        except self.ray.exceptions.RayError as error:
            # its workers or nodes died, also in the retries
            lines = str(error).splitlines() or [""]
            for trial in unit:
                yield Outcome(trial.key, error=f"{type(error).__name__}: {lines[0]}")
