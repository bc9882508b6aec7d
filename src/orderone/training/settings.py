"""Validated settings of one training, and the updates after which something is due."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.training.schedule import Factor

PRECISIONS = ("float32", "bfloat16", "float64")


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
        """Return whether to report the loss after `done` updates; never at the end."""
        return done < self.steps and done % self.report_every == 0

    @property
    def dtype(self) -> torch.dtype | None:
        """Data type of the parameters; None leaves them as they are."""
        return torch.float64 if self.precision == "float64" else None

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        if self.precision == "bfloat16":
            return torch.autocast(device.type, torch.bfloat16)
        return nullcontext()


def optional_count(value: Count | None, name: str) -> int | None:
    """Return `value` as a whole number, 1 or more; return None for None."""
    if value is None:
        return None
    return count(value, name)
