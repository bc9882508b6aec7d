"""Proof of a stack by its own first steps, which two of its members also take alone.

This is the cheap form of `verify`: the stack that trains is the one that is proved, and nothing is
built for the proof but one of the two stand-alone models. Both ways have the seeds, the batches and
the schedule of the training. The stand-alone members are updated with the gradients of the stack,
so that a gradient that is zero but for rounding, of which Adam makes a whole update, does not
matter.

It only accepts: differences beyond rounding, and evaluations between steps, whose traces would stay
in the stack, are left to `verify`.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from orderone.seeding import AllGenerators, preserved
from orderone.sweeping.job import Job
from orderone.sweeping.member import Member
from orderone.sweeping.sequential import capture_pays, make_step
from orderone.sweeping.stacked.verify import (
    FirstData,
    Proof,
    proof_of,
    proved_steps,
    read_first,
    shared_texts,
)
from orderone.sweeping.trial import Trial
from orderone.training.modes import evaluation_mode
from orderone.training.source import Batch, moved
from orderone.training.stacked.attributes import different_count
from orderone.training.stacked.clock import seconds_of_work
from orderone.training.stacked.draws import MemberDraws
from orderone.training.stacked.program import Program
from orderone.training.stacked.proof import HALF, ROUNDING, Comparison
from orderone.training.stacked.stack import Stack
from orderone.training.stacked.ways import EVALUATED, StandAlone
from orderone.training.step import Step

MEASURED = 2  # steps in a block, at least: outcomes must not be known before the proof


def fastest_update(step: Step, updates: int, batches: int) -> float:
    """Return the seconds of the fastest update; the `batches` of the step are used in turn."""
    seconds: list[float] = []
    for number in range(updates):
        started = seconds_of_work()
        step.backward(number % batches)
        step.apply()
        seconds.append(seconds_of_work() - started)
    return min(seconds)


class NotProved(Exception):  # noqa: N818  # not an error: `verify` decides
    """The first steps were not equal within rounding."""


def can_be_proved(job: Job, trials: Sequence[Trial]) -> bool:
    """Return whether the first steps of a stack can prove it."""
    if torch.device(job.device).type != "cpu" or job.settings.half is not None:
        return False
    if job.compile or capture_pays(job):
        return False
    if job.evaluate_every is not None or job.report_every < MEASURED:
        return False
    return len({job.settings_of(trial).steps for trial in trials}) == 1


class FirstSteps:
    """First steps of a stack and of two of its members alone.

    `members` are those of the stack. The stack copies their tensors and calls only the first, so
    that the model of the last one can also be trained alone, if it was built last.
    """

    def __init__(
        self, job: Job, trials: Sequence[Trial], stack: Stack, members: Sequence[Member]
    ) -> None:
        self.job = job
        self.stack = stack
        self.steps: int = proved_steps(job, trials)
        with preserved():
            self.data: FirstData = read_first(job, trials, self.steps)
        self.rows: Tensor = torch.tensor(self.data.rows)
        first, last = self.data.pair
        built: Member | None = None
        if last is trials[-1] and len(trials) > 1:
            built = members[-1]
        makers = [lambda: self._step(0, job.member(first)), lambda: self._last(last, built)]
        seeds = [trial.seed for trial in self.data.pair]
        self.alone: StandAlone = StandAlone(makers, seeds)
        self.seconds: list[float] = []  # of each step of the stack
        self._found = Comparison(stack.optimizer.laws)
        self._shared_change: bool = False  # whether passes change global variables

    def _last(self, trial: Trial, built: Member | None) -> Step:
        return self._step(1, built or self.job.member(trial))

    def _step(self, k: int, member: Member) -> Step:
        step = make_step(self.job, self.data.pair[k], member, Step)
        return replace(step, source=self.data.of_members[k].source())

    def seconds_alone(self, updates: int) -> float:
        """Return the seconds of an update of one member alone, the fastest of so many in a row.

        Between steps of the stack it would be slower than it is alone: its tensors would have left
        the caches of the processor. The first member is not used again after that.
        """
        with preserved():
            return fastest_update(self.alone.step_of(0), updates, self.steps)

    def step(self, step: int, batches: Sequence[Batch], factor: float) -> Tensor:
        """Make an update of the stack, and of two members alone; return the losses of the stack."""
        generators = AllGenerators.now()
        shared: dict[str, str] = {}
        if step:  # in the first pass, code may fill its caches
            shared = shared_texts(self.job, self.alone.step_of(0))
        losses, gradients = self.alone.gradients(step)
        if step:
            self._shared_change = shared_texts(self.job, self.alone.step_of(0)) != shared
        generators.restore()
        started = seconds_of_work()
        stack_losses, stack_gradients = self.stack.gradients(batches)
        spent = seconds_of_work() - started
        pair = {name: g[self.rows] for name, g in stack_gradients.items()}
        self._found.add_passes(step, losses, gradients, stack_losses[self.rows], pair)
        self._compare_draws()
        before = self.alone.parameters()
        started = seconds_of_work()
        self.stack.update(stack_gradients, factor)
        self.seconds.append(spent + seconds_of_work() - started)
        self.alone.update(step, pair)
        after = self._pair(self.stack.parameters)
        self._found.add_updates(step, before, self.alone.parameters(), after)
        self._found.add_buffers(step, self.alone.buffers(), self._pair(self.stack.buffers))
        return stack_losses

    def _pair(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: x.detach()[self.rows] for name, x in tensors.items()}

    def _compare_draws(self) -> None:
        draws = self.stack.program.draws
        assert draws is not None
        self._found.add_states(self.alone.states, [draws.states[k] for k in self.data.rows])

    def proof(self) -> Proof:
        """Return the proof; raise NotProved if differences are larger than rounding."""
        if different_count(self.alone.step_of(0).module, self.stack.program.model) is not None:
            raise NotProved
        with preserved():
            self._compare_evaluations()
        found = self._found.read(self.alone.drew)
        in_half = any(p.dtype in HALF for p in self.stack.parameters.values())
        if in_half or not found.same_draws or found.beyond():
            raise NotProved
        if self.alone.drew_elsewhere and not self.data.one_seed:
            raise NotProved  # two steps may have drawn the same by chance
        if self._shared_change:
            raise NotProved  # two steps may agree by chance
        pair = tuple(trial.key for trial in self.data.pair)
        return proof_of(found, f"within {ROUNDING:g} units of rounding", pair)

    def _compare_evaluations(self) -> None:
        """Compare held-out losses; the model that the stack calls is not touched."""
        losses = self.alone.evaluate()
        if losses is None:
            return
        old = self.stack.program
        model = self.alone.step_of(0).module
        draws = MemberDraws(len(self.alone))
        program = Program(model, old.loss, old.precision, draws)
        draws.seed([seed + EVALUATED for seed in self.alone.seeds])
        batch = moved(self.data.held_out[0], torch.device(self.job.device), self.job.precision)
        tensors = {name: x.detach()[self.rows] for name, x in self.stack.tensors.items()}
        with torch.no_grad(), evaluation_mode(model):
            others, _ = program.losses(tensors, batch, shared=True)
        self._found.add_evaluation(self.steps - 1, losses, others)
