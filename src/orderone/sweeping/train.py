"""`train`: one model, in one process or in many that `torchrun` starts.

An update: the schedule's factor times every group's own rate; `accumulate` batches, whose gradients are averaged; their
norm cut at `clip`; a step. Losses are read from the device every `report_every` updates, and not in between.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.core.given import Count, Number
from orderone.core.reals import real
from orderone.measure.batches import Loss, loss_of
from orderone.planning import Plan
from orderone.sweeping import interrupts
from orderone.sweeping.kept import Kept
from orderone.sweeping.member import FUSED
from orderone.sweeping.outcome import final_loss
from orderone.sweeping.schedule import Factor
from orderone.sweeping.schedule import schedule as read_schedule
from orderone.sweeping.sinks import Sink, read_sinks
from orderone.sweeping.source import Source, moved, read_source
from orderone.sweeping.world import World, whole, world

PRECISIONS = ("float32", "bfloat16", "float64")


@dataclass
class Trained:
    """What came of it. `losses[t]` is the training loss before update t; `evaluation` has (updates, held-out loss)."""

    model: nn.Module = field(repr=False)
    optimizer: Optimizer = field(repr=False)
    losses: np.ndarray
    evaluation: list[tuple[int, float]]
    loss: float  # held out at the end, or the mean of the last tenth; inf if it diverged
    diverged_at: int | None
    seconds: float


def train(
    model: Any,
    data: Any,
    steps: Count,
    *,
    optimizer: Optimizer | None = None,
    loss: Loss | None = None,
    schedule: Any = "constant",
    warmup: Count = 0,
    final: Number = 0.0,
    accumulate: Count = 1,
    clip: Number | None = None,
    precision: str = "float32",
    seed: Count = 0,
    evaluate_every: Count | None = None,
    report_every: Count = 10,
    sinks: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_seconds: Number = 600.0,
    strategy: str | None = None,
    device: Any = None,
) -> Trained:
    """Train a planned model. The same call with the same `checkpoint` goes on where the last one ended.

    Args:
        model: A plan, which is applied if it was not yet; or a module, with `optimizer`.
        data: A task of `orderone.data`, a function of (step, seed) that returns a batch, or one batch for all steps.
        steps: Updates.
        optimizer: Instead of `plan.optimizer()`, made after the model is where it will train; not for sharded models.
        loss: As in `coord_check`; by default the task's, the model's own, or the usual one.
        schedule, warmup, final: One factor for all learning rates; see `orderone.sweeping.schedule`.
        accumulate: Batches an update.
        clip: The largest norm of a gradient.
        precision: float32, bfloat16 (autocast) or float64.
        seed: Of the data and of dropout.
        evaluate_every: Updates between held-out losses; by default at the end only.
        report_every: Updates between reports to `sinks`.
        sinks: A path that ends in .jsonl, TensorBoard(folder), WandB(...), or several.
        checkpoint: A file (.safetensors) to go on from, written every `checkpoint_seconds`, on Ctrl-C, and at the end.
        strategy: "ddp" or "fsdp" under torchrun; by default ddp there. Each process trains on its rows of a batch.
        device: By default a GPU if there is one.
    """
    settings = Settings(
        steps=count(steps, "steps"),
        factor=read_schedule(schedule, steps, warmup, final),
        accumulate=count(accumulate, "accumulate"),
        clip=None if clip is None else real(clip, "clip", above=0),
        precision=one_of(precision, PRECISIONS, "precision"),
        seed=count(seed, "seed", least=0),
        evaluate_every=None if evaluate_every is None else count(evaluate_every, "evaluate_every"),
        report_every=count(report_every, "report_every"),
        checkpoint_seconds=real(checkpoint_seconds, "checkpoint_seconds", least=0),
    )
    source, told = read_source(data), read_sinks(sinks)
    _check(model, optimizer, strategy)
    with (
        world(strategy, device) as here,
        torch.random.fork_rng(range(torch.cuda.device_count())),
        interrupts.deferred(),
    ):
        made = Training(here, settings, model, optimizer, source, loss or source.loss, told if here.first else [])
        return made.run(None if checkpoint is None else Kept(Path(checkpoint), here))


def _check(model: Any, optimizer: Optimizer | None, strategy: str | None) -> None:
    module = model.bound() if isinstance(model, Plan) else model
    if isinstance(module, nn.Module) and any(p.is_meta for p in module.parameters()):
        raise ValueError("model: its tensors are on the meta device and have no values; build it on the CPU or a GPU")
    if not isinstance(module, nn.Module):
        raise ValueError(f"model: expected a plan, or an nn.Module with optimizer=...; got {type(model).__name__}")
    if optimizer is None and not isinstance(model, Plan):
        raise ValueError("optimizer: expected one beside a module; give a plan (o1.plan(...)), or optimizer=...")
    if optimizer is not None and strategy == "fsdp":
        raise ValueError(
            "optimizer: sharding replaces the tensors it would hold; give a plan instead, which makes its own"
        )


def _made(plan: Plan, here: World) -> Optimizer:
    """In one kernel an update, where there are such kernels."""
    fused = here.device.type == "cuda" and plan.settings.optimizer in FUSED
    return plan.optimizer(fused=True) if fused else plan.optimizer()


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
        self.here, self.settings, self.source, self.loss_function, self.sinks = here, settings, source, loss, sinks
        plan = model if isinstance(model, Plan) else None
        if plan is not None and not plan.applied:
            plan.apply()
        self.module: nn.Module = plan.bound() if plan is not None else model
        self.module.to(here.device, torch.float64 if settings.precision == "float64" else None)
        self.forward = here.wrapped(self.module)
        self.optimizer: Optimizer = optimizer if plan is None or optimizer is not None else _made(plan, here)  # type: ignore[assignment]
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

    # --- training ----------------------------------------------------------------------------------------------------

    def run(self, kept: Kept | None) -> Trained:
        torch.manual_seed(self.settings.seed + self.here.rank)  # dropout differs between processes
        if kept is not None:
            kept.restore(self)
        for sink in self.sinks:
            sink.start(self.done)
        try:
            return self._run(kept)
        finally:
            for sink in self.sinks:
                sink.close()

    def _run(self, kept: Kept | None) -> Trained:
        started, before = time.monotonic(), self.seconds
        saved = started
        while self.done < self.settings.steps and self.diverged_at is None:
            self.step()
            due = self._evaluation_is_due()
            if self.done % self.settings.report_every and not due and self.done < self.settings.steps:
                continue
            self.read()
            self.seconds = before + time.monotonic() - started
            if self.diverged_at is None and due:
                self.evaluate()
            self.report(evaluated=due)
            saved = self.keep(kept, saved)
        return self.result()

    def step(self) -> None:
        factor, parts = self.settings.factor(self.done), self.settings.accumulate
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.here.device)
        for part in range(parts):
            batch = self.here.share(self.source.batch(self.done * parts + part, self.settings.seed))
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
        """Losses from the device, averaged over processes; nothing after the first that is not finite."""
        values = self.here.mean(torch.stack(self.unread).double()).tolist()
        self.unread.clear()
        bad = next((k for k, value in enumerate(values) if not isfinite(value)), None)
        self.losses += values if bad is None else values[: bad + 1]

    @property
    def diverged_at(self) -> int | None:
        return len(self.losses) - 1 if self.losses and not isfinite(self.losses[-1]) else None

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
        values = {"loss": self.losses[-1], "lr": max(group["lr"] for group in self.optimizer.param_groups)}
        values["seconds"] = self.seconds
        if self.norm is not None:
            values["gradient_norm"] = float(whole(self.norm))
        if evaluated and self.evaluation and self.evaluation[-1][0] == self.done:
            values["evaluation"] = self.evaluation[-1][1]
        for sink in self.sinks:
            sink.log(self.done, values)

    # --- keeping -----------------------------------------------------------------------------------------------------

    def keep(self, kept: Kept | None, saved: float) -> float:
        """When the last checkpoint was written; a KeyboardInterrupt if somebody asked to stop."""
        stop = self.here.any(interrupts.pending())
        late = self.here.any(time.monotonic() - saved >= self.settings.checkpoint_seconds)
        if kept is not None and self.diverged_at is None and (stop or late or self.done == self.settings.steps):
            kept.save(self)
            saved = time.monotonic()
        if stop:
            raise KeyboardInterrupt
        return saved

    def result(self) -> Trained:
        losses = np.asarray(self.losses)
        loss = final_loss(self.losses, self.evaluation, self.diverged_at is not None)
        return Trained(self.module, self.optimizer, losses, self.evaluation, loss, self.diverged_at, self.seconds)

    @property
    def identity(self) -> Mapping[str, Any]:
        """What a checkpoint must agree with."""
        asked = self.settings
        return {"steps": asked.steps, "seed": asked.seed, "accumulate": asked.accumulate, "precision": asked.precision}
