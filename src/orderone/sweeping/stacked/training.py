"""Training of one stack from its first step to its last, in blocks of steps with pauses between.

Within a block nothing waits for the device: losses stay there. In the pause they are read once,
members that diverged or were stopped get their outcomes and leave, held-out losses are computed,
and a checkpoint is written if it is time.

The loop of a single training (`orderone.training.loop`) cannot be used here: many members share one
compiled or captured update, end at different steps, and leave the stack while others continue. Both
loops share the settings, the batches, the outcome and the format of checkpoints.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from orderone.seeding import preserved, seeded, set_seed
from orderone.sweeping.example_loss import changed_example_loss
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import Report, capture_pays
from orderone.sweeping.stacked.feed import stacked_batches
from orderone.sweeping.stacked.first_steps import FirstSteps, NotProved
from orderone.sweeping.stacked.last_step import UNCLEAR, LastStep
from orderone.sweeping.stacked.making import make_stack
from orderone.sweeping.stacked.program_check import ProgramCheck
from orderone.sweeping.stacked.resume_check import state_lost_by_checkpoints
from orderone.sweeping.stacked.unfinished import restore, save
from orderone.sweeping.stacked.verify import NOT_PROVED, STEPS, FirstBatches, Proof
from orderone.sweeping.trial import Trial
from orderone.training import interrupts
from orderone.training.outcome import Outcome, make_outcome, recent_loss
from orderone.training.settings import Settings
from orderone.training.source import Batch, Source, moved
from orderone.training.stacked.alike import has_user_code
from orderone.training.stacked.compiled_step import (
    WORTH_TRACING,
    CompiledStep,
    FixedStep,
    TracedPassesStep,
)
from orderone.training.stacked.errors import NotCapturable, NotStackable
from orderone.training.stacked.graph import CapturedStep
from orderone.training.stacked.plain_code import is_plain
from orderone.training.stacked.program import exchanged
from orderone.training.stacked.stack import Stack
from orderone.training.step import Step

GONE = 1 / 4  # share of a captured stack that leaves before the rest is captured again


class StackedTraining:
    """`slots` are the trials in the stack, in its order; `running` are those that still train.

    `first_batches` were read before, for the proof that the stack equals stand-alone runs. With
    `prove`, its first steps are this proof; `accept` is then called before the next step, and may
    raise.
    """

    def __init__(
        self,
        job: Job,
        trials: Sequence[Trial],
        folder: Path | None = None,
        proof: Proof = NOT_PROVED,
        first_batches: FirstBatches | None = None,
        prove: bool = False,
    ):
        self.job = job
        self.proof: Proof = proof
        self.lost: str | None = None  # state that a checkpoint would not hold
        if folder is not None:
            self.lost = state_lost_by_checkpoints(job, trials)
        self.first_batches = first_batches
        self.settings: Settings = max(map(job.settings_of, trials), key=lambda s: s.steps)
        self.source: Source = job.source(trials[0])
        self.folder = folder
        self.device: torch.device = torch.device(job.device)
        self.slots: list[Trial] = list(trials)
        self.first: Trial = trials[0]  # the stack calls its model
        self.running: set[str] = {trial.key for trial in trials}
        self.losses: dict[str, list[float]] = {}
        self.evaluation: dict[str, list[tuple[int, float]]] = {}
        self.seconds: dict[str, float] = {}
        self.steps: dict[str, int] = {}  # updates of each member
        for trial in trials:
            self.steps[trial.key] = job.settings_of(trial).steps
            self.losses[trial.key] = []
            self.evaluation[trial.key] = []
            self.seconds[trial.key] = 0.0
        self.done: int = 0
        self.formed: int = 0  # updates before the stack had its present members
        self.members: int = len(trials)
        members = [job.member(trial) for trial in trials]
        self.stack: Stack = make_stack(job, members)
        self.first_steps: FirstSteps | None = None  # while they have not proved the stack
        if prove:
            self.first_steps = FirstSteps(job, trials, self.stack, members)
            self.first_batches = FirstBatches(self.first_steps.data.stacked)
        self.alone: tuple[Trial, Step] | None = None  # a member that has taken these steps alone
        self.accept: Callable[[FirstSteps], None] | None = None
        self.captured: FixedStep | None = None
        self.capture: bool = capture_pays(job) or bool(job.compile) or self._tracing_pays()
        self.not_captured: str | None = None  # why not
        # Models set attributes in their first pass, such as the kind of a loss: a step comes first.
        self.ready_to_capture: bool = False
        self.shared: str | None = None  # what shows that trials share state
        self.check: ProgramCheck | None = None  # of the captured step

    def run(self, report: Report | None) -> Iterator[Outcome]:
        """Yield the outcome of each member when it ends."""
        with seeded(self.slots[0].seed):
            self.stack.seed([trial.seed for trial in self.slots])
            restore(self)
            if self.done and self.first_steps is not None:
                raise NotProved  # its first steps were made before
            self._try_evaluation()
            yield from self._end_members()
            saved = time.monotonic()
            saves = 0
            while self.running:
                yield from self._train_block()
                yield from self._report(report)
                self._evaluate_if_due()
                self._check_shared_state()
                stop = interrupts.pending()
                late = time.monotonic() - saved >= self.settings.checkpoint_seconds
                # a resume repeats updates between two checkpoints: the second comes soon
                if stop or late or saves == 1:
                    save(self)
                    saved = time.monotonic()
                    saves += 1
                if stop:
                    raise KeyboardInterrupt
                yield from self._end_members()
                self._drop_ended()

    def begin_again(self) -> None:
        """Build the members anew: a checkpoint was loaded that does not continue them."""
        self.stack = make_stack(self.job, [self.job.member(trial) for trial in self.slots])
        set_seed(self.slots[0].seed)
        self.stack.seed([trial.seed for trial in self.slots])
        self.ready_to_capture = False
        self.done = 0
        for trial in self.slots:
            self.losses[trial.key] = []
            self.evaluation[trial.key] = []
            self.seconds[trial.key] = 0.0

    def repeated_step(self, step: int) -> list[float]:
        """Make an update of a checkpoint that was loaded; return the losses."""
        seeds = [trial.data_seed for trial in self.slots]
        batches = stacked_batches(self.job, self.source, step, seeds)
        return self.stack.step(*batches, factor=self.settings.factor(step)).tolist()

    def _end_members(self) -> Iterator[Outcome]:
        """Yield the outcomes of members that have made all their updates."""
        for trial in self.slots:
            if trial.key in self.running and self._at_end(trial):
                self.running.remove(trial.key)
                yield self._outcome(trial)

    def _at_end(self, trial: Trial) -> bool:
        return self.done >= self.steps[trial.key]

    def _try_evaluation(self) -> None:
        """Evaluate another model once, to find errors before the training and not after it.

        A proof has done that, too.
        """
        if self.done or self.proof.how or self.first_steps is not None:
            return
        for batch in self.source.held_out()[:1]:
            with preserved():
                trial_stack = make_stack(self.job, [self.job.member(self.slots[0])])
                trial_stack.evaluate(moved(batch, self.device, self.job.precision))

    # --- a block of steps -------------------------------------------------------------------------

    def _train_block(self) -> Iterator[Outcome]:
        """Train until a report or an evaluation is due; yield outcomes of members that diverged."""
        started = time.monotonic()
        seeds = [trial.data_seed for trial in self.slots]
        rows: list[torch.Tensor] = []
        end = min(self.steps[key] for key in self.running)
        while self.done < end and (self.first_steps or not interrupts.pending()):
            batches = self._batches(seeds)
            try:
                rows.append(self._step(batches, self.settings.factor(self.done)).clone())
            except (RuntimeError, AttributeError, KeyError):
                self._must_have_the_same_parameters()  # names that the model no longer has
                raise
            self.done += 1
            if self.settings.report_due(self.done) or self.settings.evaluation_due(self.done):
                break
        if not rows:
            return
        self._must_have_the_same_parameters()
        losses = torch.stack(rows).double().cpu().numpy()  # waits for the device
        share = (time.monotonic() - started) / len(self.running)
        for trial, column in zip(self.slots, losses.T, strict=True):
            if trial.key not in self.running:
                continue
            self.seconds[trial.key] += share
            if not self._append(trial, column):
                self.running.remove(trial.key)
                yield self._outcome(trial, diverged_at=len(self.losses[trial.key]) - 1)

    def _batches(self, seeds: Sequence[int]) -> list[Batch]:
        """Return the batches of the next update; those of the first steps may have been read."""
        if self.first_batches is not None and len(seeds) == self.members:
            batches = self.first_batches.take(self.done)
            if batches is not None:
                return batches
        return stacked_batches(self.job, self.source, self.done, seeds)

    def _step(self, batches: Sequence[Batch], factor: float) -> torch.Tensor:
        if self.first_steps is not None:
            return self._proved_step(self.first_steps, batches, factor)
        if self._last_is_checked():
            return self._last_step(batches, factor)
        return self._usual_step(batches, factor)

    def _usual_step(self, batches: Sequence[Batch], factor: float) -> torch.Tensor:
        if not self.ready_to_capture:
            self.ready_to_capture = True
            return self.stack.step(*batches, factor=factor)
        if self.capture and self.captured is None:
            try:
                if not self._can_be_fixed():
                    raise NotCapturable("steps may run different operations")
                self.captured = self._fixed_step(batches)
            except NotCapturable as error:
                self.capture = False
                self.not_captured = str(error)
            if not self.capture:
                # The error referred to tensors of another stream, also in cycles of references.
                # torch would warn that gradients of the next step come from a wrong stream.
                gc.collect()
            self.check = None
            if self.captured is not None and self.proof.how and not self.proof.draws:
                self.check = ProgramCheck(self.stack, self.captured)
        if self.captured is None or not self.captured.fits(*batches):
            return self.stack.step(*batches, factor=factor)
        if self.check is None or not self.check.left:
            return self.captured(*batches, factor=factor)
        losses = self.check.step(batches, factor)
        if self.check.failure is not None:
            self.capture = False
            self.captured = None
            self.not_captured = self.check.failure
        return losses

    def _proved_step(
        self, first: FirstSteps, batches: Sequence[Batch], factor: float
    ) -> torch.Tensor:
        losses = first.step(self.done, batches, factor)
        self.ready_to_capture = True
        if self.done + 1 == first.steps:
            self.proof = first.proof()
            if self.accept is not None:
                self.accept(first)
            self.alone = first.data.pair[1], first.alone.step_of(1)
            self.first_steps = None
        return losses

    def _last_is_checked(self) -> bool:
        """Return whether a member takes the next step alone, too."""
        if not self.proof.how or self.done < STEPS or self.done + 1 != self.settings.steps:
            return False
        if self.proof.draws and self.stack.program.draws is None:
            return False  # random numbers of members are known on a CPU only
        return has_user_code(self.stack.program.model)

    def _last_step(self, batches: Sequence[Batch], factor: float) -> torch.Tensor:
        """Make the last step of the stack; one member takes it alone, too.

        The training has made its steps by now: if the other model raises an error, such as one for
        memory, the step is unclear.
        """
        rows = [k for k, trial in enumerate(self.slots) if trial.key in self.running]
        trial = self.slots[rows[-1]]
        alone = None
        if self.alone is not None and self.alone[0].key in self.running:
            trial, alone = self.alone
        row = self.slots.index(trial)
        check = None
        with suppress(Exception):
            check = LastStep(
                self.job, self.stack, self.first, trial, row, self.done, batches, alone
            )
        gradients: dict[str, torch.Tensor] | None = None
        if self.captured is not None and self.captured.fits(*batches):
            losses = self.captured(*batches, factor=factor)
        else:
            losses, all_gradients = self.stack.gradients(batches)
            finite = self.stack.unscale(all_gradients)
            gradients = {name: g[row : row + 1].clone() for name, g in all_gradients.items()}
            self.stack.update(all_gradients, factor, finite)
        last = UNCLEAR
        if check is not None:
            try:
                last = check.compare(losses, gradients)
            except NotStackable:
                raise
            except Exception:  # of the user's code, or for memory
                last = UNCLEAR
        self.proof = replace(self.proof, last=last)
        return losses

    def _fixed_step(self, batches: Sequence[Batch]) -> FixedStep:
        if capture_pays(self.job):
            return CapturedStep(self.stack, *batches, steps=self._steps_to_compile())
        if self.job.compile:
            return CompiledStep(self.stack, *batches)
        return TracedPassesStep(self.stack, *batches)

    def _tracing_pays(self) -> bool:
        """Return whether the training on a CPU is long enough to trace its passes."""
        steps = (self.settings.steps - self.formed) * self.settings.accumulate
        on_cpu = self.device.type == "cpu" and self.job.compile is None
        return on_cpu and steps >= WORTH_TRACING

    def _can_be_fixed(self) -> bool:
        """Return whether a step may be fixed; nobody asked for traced passes on a CPU.

        They need a proof and plain code, and draw no random numbers.
        """
        if capture_pays(self.job) or self.job.compile:
            return True
        if not self.proof.how or self.proof.draws or not self._tracing_pays():
            return False
        return is_plain(self.stack.program.model, self.stack.program.loss)

    def _steps_to_compile(self) -> int:
        """Return the number of steps that a compilation would serve; 0 if it is not wanted."""
        if self.job.compile is not None:
            return 0
        return (self.settings.steps - self.formed) * self.settings.accumulate

    def _must_have_the_same_parameters(self) -> None:
        name = self.stack.exchanged_parameter()
        if name is not None:
            raise exchanged(name)

    def _check_shared_state(self) -> None:
        """Notice at the end whether anything acts now that all trials of a process share."""
        if self.done == self.settings.steps and self.running:
            self.shared = changed_example_loss(self.job, self.first.program)

    def _append(self, trial: Trial, losses: np.ndarray) -> bool:
        """Add losses up to the first that is not finite; return whether all are finite."""
        wrong = np.flatnonzero(~np.isfinite(losses))
        if len(wrong):
            losses = losses[: wrong[0] + 1]
        self.losses[trial.key] += losses.tolist()
        return not len(wrong)

    # --- between blocks ---------------------------------------------------------------------------

    def _report(self, report: Report | None) -> Iterator[Outcome]:
        """Report recent losses; yield the outcomes of members that a pruner stops."""
        if report is None or not self.running or not self.settings.report_due(self.done):
            return
        recent: dict[str, float] = {}
        for trial in self.slots:
            if trial.key in self.running and not self._at_end(trial):
                losses = self.losses[trial.key]
                recent[trial.key] = recent_loss(losses, self.settings.report_every)
        stopped = report(self.done, recent)
        for trial in self.slots:
            if trial.key in stopped and trial.key in self.running:
                self.running.remove(trial.key)
                yield self._outcome(trial, stopped_at=self.done)

    def _evaluate_if_due(self) -> None:
        every = self.settings.evaluate_every
        regular = every is not None and self.done % every == 0
        due = [regular or self._at_end(trial) for trial in self.slots]
        if not self.running or not any(due):
            return
        batches = self.source.held_out()
        if not len(batches):
            return
        losses = torch.stack([self._evaluated(batch) for batch in batches])
        means = losses.double().mean(0).tolist()
        for trial, mean, wanted in zip(self.slots, means, due, strict=True):
            if wanted:
                self.evaluation[trial.key].append((self.done, mean))

    def _evaluated(self, batch: Batch) -> torch.Tensor:
        return self.stack.evaluate(moved(batch, self.device, self.job.precision))

    def _drop_ended(self) -> None:
        """Remove members that have ended; from a captured stack only if many have ended."""
        ended = len(self.slots) - len(self.running)
        if not ended or not self.running:
            return
        if self.captured is not None and ended < GONE * len(self.slots):
            return
        positions: list[int] = []
        remaining: list[Trial] = []
        for k, trial in enumerate(self.slots):
            if trial.key in self.running:
                positions.append(k)
                remaining.append(trial)
        self.captured = None
        self.formed = self.done
        self.stack.keep(positions)
        self.slots = remaining

    def _compile_facts(self) -> dict[str, object]:
        """Return why the stack was compiled or not, for the notes of the sweep."""
        if self.captured is None:
            failed = self.check is not None and self.check.failure is not None
            if self.not_captured and (self.job.compile or failed):
                return {"not compiled": self.not_captured}
            return {}
        facts: dict[str, object] = {}
        if self.captured.compile_error:
            facts["not compiled"] = self.captured.compile_error
        if self.captured.compile_choice:
            facts["compile choice"] = self.captured.compile_choice
        if self.captured.compiled:
            facts["compile seconds"] = self.captured.compile_seconds
        return facts

    def _outcome(
        self, trial: Trial, diverged_at: int | None = None, stopped_at: int | None = None
    ) -> Outcome:
        facts: dict[str, object] = {
            "engine": "stacked",
            "device": str(self.device),
            "members": self.members,
            "graph": isinstance(self.captured, CapturedStep),
            "compiled": self.captured is not None and self.captured.compiled,
            "verified": self.proof.fact(),
        }
        if self.shared is not None:
            facts["shared state"] = self.shared
        facts |= self._compile_facts()
        if self.stack.scale is not None:
            facts["skipped updates"] = int(self.stack.scale.skipped[self.slots.index(trial)])
        return make_outcome(
            trial.key,
            self.losses[trial.key],
            self.evaluation[trial.key],
            precision=self.job.precision,
            diverged_at=diverged_at,
            stopped_at=stopped_at,
            seconds=self.seconds[trial.key],
            facts=facts,
        )
