"""Results of one training.

final = held-out loss at the end,
        or the mean training loss of the last tenth of the steps,
        or inf if the training diverged
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from typing import TYPE_CHECKING

import numpy as np
from torch import nn
from torch.optim import Optimizer

if TYPE_CHECKING:
    from orderone.measure.size_monitor import Size

TAIL = 10  # the last 1/10 of the steps


@dataclass(frozen=True)
class Trained:
    """Result of `train`.

    `losses[t]` is the training loss before update t; `evaluation` has (updates, held-out loss).
    """

    model: nn.Module = field(repr=False)
    optimizer: Optimizer = field(repr=False)
    losses: np.ndarray
    evaluation: list[tuple[int, float]]
    loss: float  # held-out loss at the end, or mean of the last tenth; inf if diverged
    diverged_at: int | None
    seconds: float
    notes: tuple[str, ...] = ()  # on the data and on checkpoints
    sizes: "tuple[Size, ...]" = field(default=(), repr=False)  # of activations (`sizes_every`)

    def __repr__(self) -> str:
        updates = f"{len(self.losses)} updates in {self.seconds:.1f} s"
        if self.diverged_at is not None:
            return f"<Trained {updates}: diverged at step {self.diverged_at}>"
        if self.evaluation:
            kind = "held-out loss"
        else:
            kind = "mean loss of the last tenth"
        return f"<Trained {updates}: {kind} {self.loss:.4g}>"


def _no_losses() -> np.ndarray:
    return np.zeros(0, np.float32)


@dataclass(frozen=True)
class Outcome:
    """Result of one trial of a sweep.

    `losses[t]` is the training loss before update t. A run that diverged ends with the loss that
    was not finite.
    """

    key: str
    losses: np.ndarray = field(default_factory=_no_losses)
    evaluation: tuple[tuple[int, float], ...] = ()  # (updates done, held-out loss)
    final: float = nan
    diverged_at: int | None = None  # the step whose loss was not finite
    stopped_at: int | None = None  # updates done when a pruner stopped it
    seconds: float = 0.0  # for a member of a stack, its share of the time
    error: str | None = None
    facts: Mapping[str, object] = field(default_factory=dict)  # how it was run: engine, device, ...

    @property
    def status(self) -> str:
        if self.error is not None:
            return "failed"
        if self.diverged_at is not None:
            return "diverged"
        if self.stopped_at is not None:
            return "stopped"
        return "done"

    @property
    def finished(self) -> bool:
        """True if the trial need not run again.

        Failed trials run again: the cause may have been repaired.
        """
        return self.error is None


def make_outcome(
    key: str,
    losses: Sequence[float],
    evaluation: Sequence[tuple[int, float]],
    *,
    precision: str,
    diverged_at: int | None,
    stopped_at: int | None,
    seconds: float,
    facts: Mapping[str, object],
) -> Outcome:
    """Return the outcome of a trial that finished, diverged or was stopped."""
    current = evaluation
    if stopped_at is not None:
        current = ()  # the last evaluation may be older than the last loss
    if precision == "float64":
        dtype = np.float64
    else:
        dtype = np.float32
    return Outcome(
        key=key,
        losses=np.asarray(losses, dtype),
        evaluation=tuple(evaluation),
        final=final_loss(losses, current, diverged_at is not None),
        diverged_at=diverged_at,
        stopped_at=stopped_at,
        seconds=seconds,
        facts=facts,
    )


def final_loss(
    losses: Sequence[float] | np.ndarray, evaluation: Sequence[tuple[int, float]], diverged: bool
) -> float:
    """Return the number that trials are compared by."""
    if diverged or not len(losses):
        return inf
    if evaluation:
        value = evaluation[-1][1]
    else:
        value = recent_loss(losses, max(1, len(losses) // TAIL))
    if not isfinite(value):
        return inf
    return value


def recent_loss(losses: Sequence[float] | np.ndarray, number: int) -> float:
    """Return the mean of the last `number` losses, which is reported while a trial runs."""
    return float(np.mean(np.asarray(losses[-number:], dtype=np.float64)))


def read_evaluation(pairs: Iterable[Sequence[int | float]]) -> list[tuple[int, float]]:
    """Return (updates done, held-out loss) from JSON."""
    return [(int(step), float(loss)) for step, loss in pairs]
