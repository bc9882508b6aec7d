"""The training of one stack from its first step to its last: blocks of steps, and between them
everything else.

Within a block nothing is waited for: losses stay on the device. After it they are read once,
members that diverged or were stopped get their outcomes and leave, held-out losses are taken, and a
checkpoint is written if it is time.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orderone.seeding import seeded
from orderone.sweeping.job import Job
from orderone.sweeping.member import Member
from orderone.sweeping.sequential import Report
from orderone.sweeping.stacked.feed import stacked_batches
from orderone.sweeping.stacked.unfinished import restore, save
from orderone.sweeping.trial import Trial
from orderone.training import interrupts
from orderone.training.outcome import Outcome, final_loss, recent_loss
from orderone.training.source import moved
from orderone.training.stacked.errors import NotCapturable
from orderone.training.stacked.graph import CapturedStep
from orderone.training.stacked.stack import Stack

WORTH_CAPTURING = 50  # steps: a capture costs as much as a few
GONE = 1 / 4  # of a captured stack, before it is captured again without them


def make_stack(job: Job, members: Sequence[Member]) -> Stack:
    return Stack(
        [member.model for member in members],
        [member.optimizer() for member in members],
        loss=job.loss or job.data.loss,
        device=job.device,
        precision=torch.bfloat16 if job.precision == "bfloat16" else None,
        clip=job.clip,
        compile=job.compile,
    )


class StackedTraining:
    """`slots` are the trials in the stack, in its order; `going` are those that still train."""

    def __init__(self, job: Job, trials: Sequence[Trial], folder: Path | None = None):
        self.job = job
        self.folder = folder
        self.device = torch.device(job.device)
        self.slots = list(trials)
        self.going = {trial.key for trial in trials}
        self.losses: dict[str, list[float]] = {trial.key: [] for trial in trials}
        self.evaluation: dict[str, list[tuple[int, float]]] = {trial.key: [] for trial in trials}
        self.seconds = dict.fromkeys(self.going, 0.0)
        self.done = 0
        self.members = len(trials)
        self.stack = make_stack(job, [job.member(trial) for trial in trials])
        self.captured: CapturedStep | None = None

        if job.graphs is not None:
            self.worth = job.graphs
        else:
            self.worth = (
                self.device.type == "cuda" and job.steps * job.accumulate >= WORTH_CAPTURING
            )

    def run(self, report: Report | None) -> Iterator[Outcome]:
        with seeded(self.slots[0].seed):
            restore(self)
            self.try_evaluation()
            written = time.monotonic()
            while self.done < self.job.steps and self.going:
                yield from self.block()
                yield from self.stop(report)
                self.evaluate_if_due()
                if (
                    interrupts.pending()
                    or time.monotonic() - written >= self.job.checkpoint_seconds
                ):
                    save(self)
                    written = time.monotonic()
                if interrupts.pending():
                    raise KeyboardInterrupt
                self.leave()
            for trial in self.slots:
                if trial.key in self.going:
                    yield self.outcome(trial)

    def try_evaluation(self) -> None:
        """What cannot be evaluated together is better known before the training than after it."""
        for batch in self.job.data.held_out()[:1] if self.done == 0 else ():
            self.stack.evaluate(moved(batch, self.device, self.job.precision))

    # --- a block of steps -------------------------------------------------------------------------

    def block(self) -> Iterator[Outcome]:
        started = time.monotonic()
        seeds = [trial.data_seed for trial in self.slots]
        rows = []
        while (
            self.done < self.job.steps
            and (not rows or not self.is_a_stop(self.done))
            and not interrupts.pending()
        ):
            batches = stacked_batches(self.job, self.done, seeds)
            rows.append(self.step(batches, self.job.factor(self.done)).clone())
            self.done += 1
        if not rows:
            return
        read = torch.stack(rows).double().cpu().numpy()  # waits for the device
        share = (time.monotonic() - started) / len(self.going)
        for trial, column in zip(self.slots, read.T, strict=True):
            if trial.key in self.going:
                self.seconds[trial.key] += share
                yield from self.append(trial, column)

    def is_a_stop(self, done: int) -> bool:
        return done % self.job.report_every == 0 or self.evaluates(done)

    def evaluates(self, done: int) -> bool:
        every = self.job.evaluate_every
        return done == self.job.steps or (every is not None and done % every == 0)

    def step(self, batches: Sequence[Any], factor: float) -> torch.Tensor:
        if self.worth and self.captured is None:
            try:
                self.captured = CapturedStep(self.stack, *batches)
            except NotCapturable:
                self.worth = (
                    False  # no step in here: the error holds on to what another stream has computed
                )
        step = self.captured or self.stack.step
        return step(*batches, factor=factor)

    def append(self, trial: Trial, column: np.ndarray) -> Iterator[Outcome]:
        """A member that diverged ends with the loss that was not finite."""
        wrong = np.flatnonzero(~np.isfinite(column))
        self.losses[trial.key] += column[: wrong[0] + 1 if len(wrong) else None].tolist()
        if len(wrong):
            self.going.remove(trial.key)
            yield self.outcome(trial, diverged_at=len(self.losses[trial.key]) - 1)

    # --- between blocks ---------------------------------------------------------------------------

    def stop(self, report: Report | None) -> Iterator[Outcome]:
        every = self.job.report_every
        if report is None or self.done % every or self.done == self.job.steps or not self.going:
            return
        recent = {
            t.key: recent_loss(self.losses[t.key], every) for t in self.slots if t.key in self.going
        }
        stopped = report(self.done, recent)
        for trial in self.slots:
            if trial.key in stopped and trial.key in self.going:
                self.going.remove(trial.key)
                yield self.outcome(trial, stopped_at=self.done)

    def evaluate_if_due(self) -> None:
        if self.evaluates(self.done) and self.going:
            batches = self.job.data.held_out()
        else:
            batches = ()
        if not len(batches):
            return
        values = torch.stack(
            [self.stack.evaluate(moved(b, self.device, self.job.precision)) for b in batches]
        )
        for trial, mean in zip(self.slots, values.double().mean(0).tolist(), strict=True):
            self.evaluation[trial.key].append((self.done, mean))

    def leave(self) -> None:
        """Those that are done leave the stack; a captured one is taken apart only for many."""
        gone = len(self.slots) - len(self.going)
        if (
            not gone
            or not self.going
            or (self.captured is not None and gone < GONE * len(self.slots))
        ):
            return
        kept = [k for k, trial in enumerate(self.slots) if trial.key in self.going]
        self.captured = None
        self.stack.keep(kept)
        self.slots = [self.slots[k] for k in kept]

    def outcome(
        self, trial: Trial, diverged_at: int | None = None, stopped_at: int | None = None
    ) -> Outcome:
        losses = self.losses[trial.key]
        evaluation = self.evaluation[trial.key]
        return Outcome(
            key=trial.key,
            losses=np.asarray(
                losses, np.float64 if self.job.precision == "float64" else np.float32
            ),
            evaluation=tuple(evaluation),
            final=final_loss(
                losses, evaluation if stopped_at is None else [], diverged_at is not None
            ),
            diverged_at=diverged_at,
            stopped_at=stopped_at,
            seconds=self.seconds[trial.key],
            facts={
                "engine": "stacked",
                "device": str(self.device),
                "members": self.members,
                "graph": bool(self.captured),
            },
        )
