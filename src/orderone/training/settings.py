"""Validated settings of one training, and the updates after which something is due."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.observe.precision import Precision
from orderone.training.inputs import Device
from orderone.training.loss_scale import LossScale
from orderone.training.schedule import Factor


@dataclass(frozen=True)
class Settings:
    """Settings of a training that do not depend on the model."""

    steps: int
    factor: Factor  # schedule: step -> factor of all learning rates
    accumulate: int
    clip: float | None
    precision: str
    evaluate_every: int | None
    report_every: int
    checkpoint_seconds: float

    def evaluation_due(self, done: int) -> bool:
        """Return whether to compute the held-out loss after `done` updates."""
        if done == self.steps:
            return True
        return self.evaluate_every is not None and done % self.evaluate_every == 0

    def report_due(self, done: int) -> bool:
        """Return whether to report the loss after `done` updates; never at the start or end."""
        return 0 < done < self.steps and done % self.report_every == 0

    @property
    def dtype(self) -> torch.dtype | None:
        """Data type of the parameters; None leaves them as they are."""
        return Precision(self.precision).dtype

    @property
    def half(self) -> torch.dtype | None:
        """Precision of autocast; None without autocast."""
        return Precision(self.precision).half

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        return Precision(self.precision).autocast(device)

    def loss_scale(self, device: torch.device) -> LossScale | None:
        """Return a new scale of the loss for one training; None if its precision needs none."""
        if Precision(self.precision).scales_loss:
            return LossScale(device)
        return None


def optional_count(value: Count | None, name: str) -> int | None:
    """Return `value` as a whole number, 1 or more; return None for None."""
    if value is None:
        return None
    return count(value, name)


def read_device(device: Device) -> str:
    """Return the name of a device of this machine; by default a GPU if there is one."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"device: expected cpu or cuda, got {device!r}", argument="device"
        ) from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device: torch found no GPU, got {device!r}; pass device='cpu'", argument="device"
        )
    return str(chosen)
