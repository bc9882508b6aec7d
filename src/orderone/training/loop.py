"""The loop of `train`, and its state between two updates.

An update: the schedule's factor times every group's own rate; `accumulate` batches, whose gradients
are averaged; their norm cut at `clip`; a step. Losses are read from the device every `report_every`
updates, and not in between.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from orderone.observe.batches import Loss, loss_of
from orderone.planning import Plan
from orderone.planning.param_groups import fused_options
from orderone.seeding import set_seed
from orderone.training import interrupts, training_identity
from orderone.training.outcome import final_loss
from orderone.training.schedule import Factor
from orderone.training.sinks import Sink
from orderone.training.source import Source, moved
from orderone.training.train_checkpoint import Kept
from orderone.training.world import World, whole


@dataclass
class Trained:
    """What came of it. `losses[t]` is the training loss before update t; `evaluation` has (updates,
    held-out loss)."""

    model: nn.Module = field(repr=False)
    optimizer: Optimizer = field(repr=False)
    losses: np.ndarray
    evaluation: list[tuple[int, float]]
    loss: float  # held out at the end, or the mean of the last tenth; inf if it diverged
    diverged_at: int | None
    seconds: float


@dataclass(frozen=True)
class Settings:
    steps: int
    factor: Factor
    accumulate: int
    clip: float | None
    precision: str
    seed: int
    evaluate_every: int | None
    report_every: int
    checkpoint_seconds: float


class Training:
    """The state of a training, which can be saved and taken up again between any two reports."""

    def __init__(
        self,
        here: World,
        settings: Settings,
        model: Any,
        optimizer: Optimizer | None,
        source: Source,
        loss: Loss | None,
        sinks: list[Sink],
    ):
        self.here = here
        self.settings = settings
        self.source = source
        self.loss_function = loss
        self.sinks = sinks
        plan = model if isinstance(model, Plan) else None
        if plan is not None and not plan.applied:
            plan.apply()
        self.plan = plan
        self.module: nn.Module = plan.bound() if plan is not None else cast(nn.Module, model)
        self.modules = training_identity.modules(self.module)
        self.module.to(here.device, torch.float64 if settings.precision == "float64" else None)
        self.forward = here.wrapped(self.module)
        self.optimizer: Optimizer = (
            optimizer if plan is None or optimizer is not None else _made(plan, here)
        )  # type: ignore[assignment]
        if plan is not None:
            plan.check(self.optimizer)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.losses: list[float] = []
        self.unread: list[Tensor] = []  # on the device
        self.norm: Tensor | None = None
        self.evaluation: list[tuple[int, float]] = []
        self.seconds = 0.0

    @property
    def done(self) -> int:
        return len(self.losses) + len(self.unread)

    # --- training ---------------------------------------------------------------------------------

    def run(self, kept: Kept | None) -> Trained:
        set_seed(self.settings.seed + self.here.rank)  # dropout differs between processes
        if kept is not None:
            kept.restore(self)
        for sink in self.sinks:
            sink.start(self.done)
        try:
            return self._run(kept)
        finally:
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate  # an optimizer of the user's own may be given again
            for sink in self.sinks:
                sink.close()

    def _run(self, kept: Kept | None) -> Trained:
        started = time.monotonic()
        before = self.seconds
        saved = started
        while self.done < self.settings.steps and self.diverged_at is None:
            self.step()
            due = self._evaluation_is_due()
            if (
                self.done % self.settings.report_every
                and not due
                and self.done < self.settings.steps
            ):
                continue
            self.read()
            self.seconds = before + time.monotonic() - started
            if self.diverged_at is None and due:
                self.evaluate()
            self.report(evaluated=due)
            saved = self.keep(kept, saved)
        return self.result()

    def step(self) -> None:
        factor = self.settings.factor(self.done)
        parts = self.settings.accumulate
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.here.device)
        for part in range(parts):
            batch = self.here.share(self.source.at(self.done * parts + part, self.settings.seed))
            with self.here.quiet(self.forward, last=part == parts - 1):
                loss = self.loss(batch)
                (loss / parts if parts > 1 else loss).backward()
            total = total + loss.detach() / parts
        if self.settings.clip is not None:
            self.norm = clip_grad_norm_(self.module.parameters(), self.settings.clip)
        self.optimizer.step()
        self.unread.append(total)

    def loss(self, batch: Any) -> Tensor:
        half = self.settings.precision == "bfloat16"
        with torch.autocast(self.here.device.type, torch.bfloat16) if half else nullcontext():
            batch = moved(batch, self.here.device, self.settings.precision)
            return loss_of(self.forward, batch, self.loss_function)

    def read(self) -> None:
        """Losses from the device, averaged over processes; nothing after the first that is not
        finite."""
        values = self.here.mean(torch.stack(self.unread).double()).tolist()
        self.unread.clear()
        bad = next((k for k, value in enumerate(values) if not isfinite(value)), None)
        self.losses += values if bad is None else values[: bad + 1]

    @property
    def diverged_at(self) -> int | None:
        if self.losses and not isfinite(self.losses[-1]):
            return len(self.losses) - 1
        return None

    def _evaluation_is_due(self) -> bool:
        every = self.settings.evaluate_every
        return self.done == self.settings.steps or (every is not None and self.done % every == 0)

    @torch.no_grad()
    def evaluate(self) -> None:
        batches = self.source.held_out()
        if not len(batches):
            return
        training = self.module.training
        self.module.eval()
        values = [self.loss(self.here.share(batch, insist=False)).double() for batch in batches]
        self.module.train(training)
        self.evaluation.append((self.done, float(self.here.mean(torch.stack(values).mean()))))

    def report(self, evaluated: bool) -> None:
        values = {
            "loss": self.losses[-1],
            "lr": max(group["lr"] for group in self.optimizer.param_groups),
        }
        values["seconds"] = self.seconds
        if self.norm is not None:
            values["gradient_norm"] = float(whole(self.norm))
        if evaluated and self.evaluation and self.evaluation[-1][0] == self.done:
            values["evaluation"] = self.evaluation[-1][1]
        for sink in self.sinks:
            sink.log(self.done, values)

    # --- keeping ----------------------------------------------------------------------------------

    def keep(self, kept: Kept | None, saved: float) -> float:
        """When the last checkpoint was written; a KeyboardInterrupt if somebody asked to stop."""
        stop = self.here.any(interrupts.pending())
        late = self.here.any(time.monotonic() - saved >= self.settings.checkpoint_seconds)
        if (
            kept is not None
            and self.diverged_at is None
            and (stop or late or self.done == self.settings.steps)
        ):
            kept.save(self)
            saved = time.monotonic()
        if stop:
            raise KeyboardInterrupt
        return saved

    def result(self) -> Trained:
        losses = np.asarray(self.losses)
        loss = final_loss(self.losses, self.evaluation, self.diverged_at is not None)
        return Trained(
            self.module,
            self.optimizer,
            losses,
            self.evaluation,
            loss,
            self.diverged_at,
            self.seconds,
        )

    @property
    def identity(self) -> Mapping[str, Any]:
        """What a checkpoint must agree with."""
        asked = self.settings
        return {
            **{
                name: getattr(asked, name)
                for name in ("steps", "seed", "accumulate", "precision", "clip")
            },
            "schedule": training_identity.schedule_name(asked.factor),
            "data": training_identity.data_name(self.source),
            "loss": training_identity.loss_name(self.loss_function, self.source),
            **self.modules,
            **training_identity.updates(self.plan, self.optimizer, self.rates, self.module),
        }


def _made(plan: Plan, here: World) -> Optimizer:
    """In one kernel an update, where there are such kernels."""
    if here.device.type == "cuda":
        return plan.optimizer(**fused_options(plan))
    return plan.optimizer()
