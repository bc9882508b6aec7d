"""One training after another with ordinary torch: what anybody would write, and what stacked
training is held against."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from math import isfinite
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from orderone.observe.batches import loss_of
from orderone.seeding import seeded
from orderone.sweeping.job import Job
from orderone.sweeping.trial import Trial
from orderone.training import checkpoint as checkpoints
from orderone.training import interrupts
from orderone.training.outcome import Outcome, final_loss, recent_loss
from orderone.training.source import moved

Report: TypeAlias = Callable[
    [int, Mapping[str, float]], "set[str]"
]  # updates done, losses by key -> keys to stop


def run_alone(
    job: Job, trials: Iterable[Trial], report: Report | None = None, checkpoint: Path | None = None
) -> Iterator[Outcome]:
    """Outcomes as they come. A trial that raises is an outcome with its error; Ctrl-C leaves a
    checkpoint."""
    for trial in trials:
        try:
            yield Training(job, trial, checkpoint).run(report)
        except Exception as error:  # the user's code may raise anything
            yield Outcome(trial.key, error=describe(error))


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class Training:
    """The state of one training, which can be saved and taken up again between any two steps."""

    def __init__(self, job: Job, trial: Trial, folder: Path | None = None):
        self.job = job
        self.trial = trial
        self.member = job.member(trial)
        self.model, self.optimizer = self.member.model, self.member.optimizer()
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.device = torch.device(job.device)
        self.losses: list[float] = []
        self.evaluation: list[tuple[int, float]] = []
        self.seconds = 0.0
        self.path = folder / f"{trial.key}{checkpoints.SUFFIX}" if folder else None

    # --- training ---------------------------------------------------------------------------------

    def run(self, report: Report | None) -> Outcome:
        with seeded(self.trial.seed):  # of dropout: the same whatever was built before
            self.resume()
            started = saved = time.monotonic()
            before = self.seconds
            while len(self.losses) < self.job.steps:
                diverged = not isfinite(self.step())
                self.seconds = before + time.monotonic() - started
                if diverged:
                    return self.outcome(diverged_at=len(self.losses) - 1)
                if self.reported(report):
                    return self.outcome(stopped_at=len(self.losses))
                self.evaluate_if_due()
                if interrupts.pending():
                    self.save()
                    raise KeyboardInterrupt
                if time.monotonic() - saved >= self.job.checkpoint_seconds:
                    self.save()
                    saved = time.monotonic()
            return self.outcome()

    def step(self) -> float:
        """One update; the loss before it. An update is left out if its loss is not finite."""
        step = len(self.losses)
        parts = self.job.accumulate
        factor = self.job.factor(step)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for part in range(parts):
            loss = self.loss(self.job.data.at(step * parts + part, self.member.data_seed))
            (loss / parts if parts > 1 else loss).backward()
            total += float(loss.detach()) / parts
        self.losses.append(total)
        if isfinite(total):
            if self.job.clip is not None:
                clip_grad_norm_(self.model.parameters(), self.job.clip)
            self.optimizer.step()
        return total

    def loss(self, batch: Any) -> torch.Tensor:
        half = self.job.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext():
            return loss_of(
                self.model,
                moved(batch, self.device, self.job.precision),
                self.job.loss or self.job.data.loss,
            )

    def reported(self, report: Report | None) -> bool:
        """Tell how it goes; whether it shall stop."""
        done = len(self.losses)
        every = self.job.report_every
        if report is None or done % every or done == self.job.steps:
            return False
        return self.trial.key in report(done, {self.trial.key: recent_loss(self.losses, every)})

    def evaluate_if_due(self) -> None:
        done = len(self.losses)
        every = self.job.evaluate_every
        if done == self.job.steps or (every is not None and done % every == 0):
            self.evaluate()

    @torch.no_grad()
    def evaluate(self) -> None:
        batches = self.job.data.held_out()
        if not len(batches):
            return
        training = self.model.training
        self.model.eval()
        values = [float(self.loss(batch)) for batch in batches]
        self.model.train(training)
        self.evaluation.append((len(self.losses), float(np.mean(values))))

    def outcome(self, diverged_at: int | None = None, stopped_at: int | None = None) -> Outcome:
        kind = np.float64 if self.job.precision == "float64" else np.float32
        evaluation = (
            self.evaluation if stopped_at is None else []
        )  # an old one is not where it was stopped
        return Outcome(
            key=self.trial.key,
            losses=np.asarray(self.losses, kind),
            evaluation=tuple(self.evaluation),
            final=final_loss(self.losses, evaluation, diverged_at is not None),
            diverged_at=diverged_at,
            stopped_at=stopped_at,
            seconds=self.seconds,
            facts={"engine": "alone", "device": str(self.device)},
        )

    # --- keeping ----------------------------------------------------------------------------------

    def save(self) -> None:
        """A checkpoint that cannot be written costs a restart, not the training. So does an
        optimizer class of the user's, which may keep its state anywhere."""
        if self.path is None or self.member.plan.user_class is not None:
            return
        tensors = {f"model.{name}": value for name, value in self._values().items()}
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        record = {
            "keys": [self.trial.key],
            "kind": "alone",
            "losses": self.losses,
            "evaluation": self.evaluation,
            "seconds": self.seconds,
            "optimizer": checkpoints.pack(
                self.optimizer.state_dict()["state"], tensors, "optimizer"
            ),
        }
        try:
            checkpoints.save(self.path, tensors, record)
        except OSError as error:
            if not self.job.warned(str(self.path.parent)):
                warnings.warn(
                    f"no checkpoint of a running trial: {self.path} ({error.strerror}); it goes on",
                    stacklevel=2,
                )

    def resume(self) -> None:
        found = checkpoints.load(self.path) if self.path else None
        if (
            found is None
            or found[1].get("kind") != "alone"
            or found[1].get("keys") != [self.trial.key]
        ):
            return
        tensors, record = found
        with torch.no_grad():
            for name, value in self._values().items():
                value.copy_(tensors[f"model.{name}"])
        groups = self.optimizer.state_dict()["param_groups"]
        state = checkpoints.unpack(record["optimizer"], tensors)
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        torch.set_rng_state(tensors["random.cpu"])
        if self.device.type == "cuda" and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        self.losses = list(record["losses"])
        self.seconds = float(record["seconds"])
        self.evaluation = [(int(step), float(value)) for step, value in record["evaluation"]]

    def _values(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers, shared ones once."""
        return dict(self.model.named_parameters()) | dict(self.model.named_buffers())
