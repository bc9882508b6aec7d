"""What one training left behind.

final = held-out loss at the end, or the mean training loss of the last tenth of the steps; inf if
it diverged
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import Any

import numpy as np

TAIL = 10  # the last 1/10 of the steps


@dataclass(frozen=True)
class Outcome:
    """`losses[t]` is the training loss before update t. A run that diverged ends with the loss that
    was not finite."""

    key: str
    losses: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    evaluation: tuple[tuple[int, float], ...] = ()  # (updates done, held-out loss)
    final: float = nan
    diverged_at: int | None = None  # the step whose loss was not finite
    stopped_at: int | None = None  # updates done when a pruner stopped it
    seconds: float = 0.0  # of a member's share, where many share a program
    error: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)  # engine, device, members: how it was run

    @property
    def status(self) -> str:
        if self.error is not None:
            return "failed"
        if self.diverged_at is not None:
            return "diverged"
        return "done" if self.stopped_at is None else "stopped"

    @property
    def finished(self) -> bool:
        """Not to be run again: a failed trial is, since what it failed of may be gone."""
        return self.error is None


def final_loss(
    losses: Sequence[float] | np.ndarray, evaluation: Sequence[tuple[int, float]], diverged: bool
) -> float:
    """The number that trials are compared by."""
    if diverged or not len(losses):
        return inf
    if evaluation:
        value = evaluation[-1][1]
    else:
        value = recent_loss(losses, max(1, len(losses) // TAIL))
    return value if isfinite(value) else inf


def recent_loss(losses: Sequence[float] | np.ndarray, number: int) -> float:
    """The mean of the last few: what is reported while a trial runs."""
    return float(np.mean(np.asarray(losses[-number:], dtype=np.float64)))
