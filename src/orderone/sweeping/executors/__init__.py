"""Executors: train trials in this process, in other processes, or on a Ray cluster.

Results are the same. An executor yields one outcome per trial when it ends. Only the process of the
sweep writes the store.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name
from orderone.sweeping.engine import Engine
from orderone.sweeping.sequential import Report
from orderone.sweeping.trial import Trial
from orderone.training.outcome import Outcome

NAMES = ("here", "processes", "ray")


class WorkersLost(RuntimeError):  # noqa: N818
    """All workers of an executor are lost, so that it cannot run the remaining units."""


@runtime_checkable
class Executor(Protocol):
    """Runs units of trials."""

    @property
    def workers(self) -> int: ...

    def run(
        self, engine: Engine, units: Sequence[Sequence[Trial]], report: Report
    ) -> Iterator[Outcome]: ...


def read_executor(
    name: Name | None, workers: Count | None, address: Name | None, device: str
) -> Executor | None:
    """Return the executor; None if the sweep chooses it."""
    if name is None and workers is None and address is None:
        return None
    name = one_of("here" if name is None else name, NAMES, "executor")
    if address is not None and name != "ray":
        raise InputError(
            f'address: only executor="ray" has an address; got executor={name!r}',
            argument="address",
        )
    if name == "here":
        from orderone.sweeping.executors.here import Here

        if workers not in (None, 1):
            raise InputError(
                f'workers: executor="here" has one worker, got {workers!r}; pass'
                ' executor="processes" or "ray"',
                argument="workers",
            )
        return Here()
    if workers is None:
        number = None
    else:
        number = count(workers, "workers")
    if name == "processes":
        from orderone.sweeping.executors.processes import Processes

        return Processes(number or default_workers(device), device)
    from orderone.sweeping.executors.ray import Ray

    return Ray(number, address, device)


def default_workers(device: str) -> int:
    """Return the number of GPUs, or of usable CPU cores."""
    if device.startswith("cuda"):
        import torch

        return max(1, torch.cuda.device_count())
    usable = getattr(os, "sched_getaffinity", None)
    if usable is None:  # not on macOS and Windows
        return os.cpu_count() or 1
    return len(usable(0))
