"""Loop of one training, and its state between two updates.

`train` and the trials of a sweep use it: a trial is a training in a world of one process. Members
of a stack share one program instead, in `orderone.sweeping.stacked.training`.

After an update at which something is due: read the losses, report, evaluate, log, save.
"""

import time
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from orderone.training import interrupts
from orderone.training.model_structure import layouts_of, structure_of
from orderone.training.outcome import recent_loss
from orderone.training.settings import Settings
from orderone.training.sinks import Sink
from orderone.training.step import Step
from orderone.training.world import World, whole

if TYPE_CHECKING:
    from orderone.measure.size_monitor import SizeMonitor

# updates done, mean of the recent losses -> whether to stop the training
LossReport: TypeAlias = Callable[[int, float], bool]
APART = 2  # updates between the first checkpoint and the second


@runtime_checkable
class Checkpoint(Protocol):
    path: Path

    @property
    def saves_finished(self) -> bool:
        """True if a training that has reached its end is saved too."""
        ...

    def check(self, loop: "TrainingLoop") -> None:
        """Check that this training can be saved; called after the first and the second update.

        Raise an InputError if it cannot and should be.
        """
        ...

    def save(self, loop: "TrainingLoop") -> None: ...

    def restore(self, loop: "TrainingLoop") -> None:
        """Continue from the file, if there is one."""
        ...


class TrainingLoop:
    """Training that can be saved and resumed whenever its losses were read.

    With `check_each_loss`, every loss is read before its update, and an update whose loss is not
    finite is skipped; this waits for the device at every update. Otherwise losses stay on the
    device until a report, an evaluation or the end is due.
    """

    def __init__(
        self,
        step: Step,
        *,
        check_each_loss: bool = False,
        report: LossReport | None = None,
        sinks: Sequence[Sink] = (),
    ):
        self.step = step
        self.settings: Settings = step.settings
        self.world: World = step.world
        self.check_each_loss = check_each_loss
        self.report = report
        self.sinks = sinks
        self.losses: list[float] = []
        self.unread: list[Tensor] = []  # losses that are still on the device
        self.gradient_norm: Tensor | None = None
        self.evaluation: list[tuple[int, float]] = []  # (updates done, held-out loss)
        self.seconds: float = 0.0
        self.stopped_at: int | None = None  # updates done when `report` stopped it
        self.monitor: SizeMonitor | None = None
        self.after_update: Callable[[TrainingLoop], None] | None = None
        self.saved: list[int] = []  # updates done at each checkpoint
        self.structure: dict[str, str] = structure_of(step.module)  # at the start
        self.layouts: dict[str, str] = layouts_of(step.module)  # at the start

    @property
    def done(self) -> int:
        return len(self.losses) + len(self.unread)

    @property
    def diverged_at(self) -> int | None:
        """Step whose loss was not finite."""
        if self.losses and not isfinite(self.losses[-1]):
            return len(self.losses) - 1
        return None

    def run(self, checkpoint: Checkpoint | None = None) -> None:
        """Train until the end, until the loss diverges, or until `report` returns True.

        If the user asked to stop, save the state and raise KeyboardInterrupt.
        """
        started = time.monotonic()
        saved = started
        seconds_before = self.seconds
        first = self.done
        while self.done < self.settings.steps:
            self.update()
            if self.after_update is not None:
                self.after_update(self)
            if checkpoint is not None and self.done == first + 2:
                checkpoint.check(self)
            if not self._reading_due():
                if checkpoint is not None and self.done == first + 1:
                    checkpoint.check(self)
                continue
            self.read_losses()
            self.seconds = seconds_before + time.monotonic() - started
            if self.diverged_at is not None:
                return
            if self._reported_to_stop():
                self.stopped_at = self.done
                return
            self.evaluate_if_due()
            self.log()
            if checkpoint is not None and self.done == first + 1:
                checkpoint.check(self)
            saved = self._save_if_due(checkpoint, saved)

    # --- updates and losses -----------------------------------------------------------------------

    def update(self) -> None:
        losses = self.step.backward(self.done)
        if self.check_each_loss:
            mean = 0.0
            for loss in losses:  # not sum(), which rounds differently
                mean += float(loss) / len(losses)
            self.losses.append(mean)
            if not isfinite(mean):
                return
        else:
            total = torch.zeros((), device=self.world.device)
            for loss in losses:
                total = total + loss / len(losses)
            self.unread.append(total)
        self.gradient_norm = self.step.apply()

    def _reading_due(self) -> bool:
        if self.check_each_loss or self.settings.evaluation_due(self.done):
            return True
        return self.done % self.settings.report_every == 0

    def read_losses(self) -> None:
        """Read the losses from the device, up to the first that is not finite."""
        if not self.unread:
            return
        losses = self.world.mean(torch.stack(self.unread).double()).tolist()
        self.unread.clear()
        for loss in losses:
            self.losses.append(loss)
            if not isfinite(loss):
                return

    # --- between updates --------------------------------------------------------------------------

    def _reported_to_stop(self) -> bool:
        if self.report is None or not self.settings.report_due(self.done):
            return False
        return self.report(self.done, recent_loss(self.losses, self.settings.report_every))

    def evaluate_if_due(self) -> None:
        if not self.settings.evaluation_due(self.done):
            return
        losses = self.step.evaluate()
        if losses is None:
            return
        if self.check_each_loss:
            # stored results were averaged by numpy, and numpy and torch round sums differently
            mean = float(np.mean(losses.tolist()))
        else:
            mean = float(self.world.mean(losses.mean()))
        self.evaluation.append((self.done, mean))

    def log(self) -> None:
        """Send the latest numbers to the sinks."""
        values = {
            "loss": self.losses[-1],
            "lr": max(float(group["lr"]) for group in self.step.optimizer.param_groups),
            "seconds": self.seconds,
        }
        if self.gradient_norm is not None:
            values["gradient_norm"] = float(whole(self.gradient_norm))
        if self.evaluation and self.evaluation[-1][0] == self.done:
            values["evaluation"] = self.evaluation[-1][1]
        if self.monitor is not None:
            values |= self.monitor.read()
        for sink in self.sinks:
            sink.log(self.done, values)

    def _save_if_due(self, checkpoint: Checkpoint | None, saved: float) -> float:
        """Save if it is time or the user asked to stop; return the time of the last checkpoint."""
        stop = self.world.any(interrupts.pending())
        late = self.world.any(time.monotonic() - saved >= self.settings.checkpoint_seconds)
        if checkpoint is not None:
            finished = checkpoint.saves_finished and self.done == self.settings.steps
            # a resume repeats updates between two checkpoints: the second comes soon
            second = len(self.saved) == 1 and self.done >= self.saved[0] + APART
            if stop or late or finished or second:
                checkpoint.save(self)
                saved = time.monotonic()
                self.saved.append(self.done)
        if stop:
            raise KeyboardInterrupt(self._interruption(checkpoint))
        return saved

    def _interruption(self, checkpoint: Checkpoint | None) -> str:
        """Return what was done and saved, and how to continue."""
        text = f"interrupted after {self.done} of {self.settings.steps} updates"
        if checkpoint is None:
            return f"{text}; nothing was saved; pass checkpoint= to be able to continue"
        return f"{text}, saved in {checkpoint.path}; run the same call again to continue"
