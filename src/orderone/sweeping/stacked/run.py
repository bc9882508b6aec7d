"""`run_stacked`: train trials of one architecture in as few programs as memory allows."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from orderone.sweeping.job import Job
from orderone.sweeping.sequential import Report
from orderone.sweeping.stacked.capacity import capacity
from orderone.sweeping.stacked.comparison import (
    LooksSlower,
    must_be_faster,
    must_look_faster,
    worth_comparing,
)
from orderone.sweeping.stacked.feed import stacked_batches
from orderone.sweeping.stacked.first_steps import NotProved, can_be_proved
from orderone.sweeping.stacked.making import make_stack
from orderone.sweeping.stacked.training import StackedTraining
from orderone.sweeping.stacked.unfinished import saved_proof, unfinished
from orderone.sweeping.stacked.verify import (
    NOT_PROVED,
    FirstBatches,
    proved_steps,
    read_first,
    verify,
)
from orderone.sweeping.trial import Trial
from orderone.training.outcome import Outcome

DEPEND_ON_STEPS = ("linear", "cosine")


def run_stacked(
    job: Job,
    trials: Sequence[Trial],
    report: Report | None = None,
    checkpoint: Path | None = None,
    if_faster: bool = False,
) -> Iterator[Outcome]:
    """Yield outcomes when trials end; resume unfinished stacks from the folder `checkpoint`.

    With `if_faster`, raise NotStackable on a CPU if a stack is slower than one after another.
    If this raises NotStackable or an error of the user's code, the caller can train the remaining
    trials with `run_alone`.
    """
    done: set[str] = set()
    for group in unfinished(checkpoint, trials):
        done |= {trial.key for trial in group}
        yield from _run(job, group, report, checkpoint)
    for group in _same_program(job, [trial for trial in trials if trial.key not in done]):
        size = job.together or equal_size(len(group), _capacity(job, group))
        for first in range(0, len(group), size):
            part = group[first : first + size]
            yield from _run(job, part, report, checkpoint, if_faster)


def equal_size(members: int, most: int) -> int:
    """Return the size of stacks of at most `most` members that makes them nearly equal.

    Stacks of one size share a compiled program.
    """
    stacks = math.ceil(members / most)
    return math.ceil(members / stacks)


def _run(
    job: Job,
    trials: Sequence[Trial],
    report: Report | None,
    checkpoint: Path | None,
    if_faster: bool = False,
) -> Iterator[Outcome]:
    """Train one stack; if memory is too small, train two halves."""
    ended: set[str] = set()
    try:
        for outcome in _outcomes(job, trials, report, checkpoint, if_faster):
            ended.add(outcome.key)
            yield outcome
        return
    except torch.OutOfMemoryError:
        if len(trials) == 1:
            raise
    torch.cuda.empty_cache()
    left = [trial for trial in trials if trial.key not in ended]
    for half in (left[: len(left) // 2], left[len(left) // 2 :]):
        if half:
            yield from _run(job, half, report, checkpoint)


def _outcomes(
    job: Job,
    trials: Sequence[Trial],
    report: Report | None,
    checkpoint: Path | None,
    if_faster: bool,
) -> Iterator[Outcome]:
    """Train one stack, and prove it: by its first steps, or by steps of other models before it."""
    proof = saved_proof(checkpoint, trials)
    first_batches = None
    if proof is None and job.verify and can_be_proved(job, trials):
        training = StackedTraining(job, trials, checkpoint, prove=True)
        if if_faster and worth_comparing(job, trials):
            training.accept = lambda first: must_look_faster(first, len(trials))
        try:
            yield from training.run(report)
            return
        except NotProved:
            pass
        except LooksSlower:
            proof = training.proof
            first_batches = FirstBatches(read_first(job, trials, proved_steps(job, trials)).stacked)
    if proof is None and job.verify:
        proof, first_batches = verify(job, trials)
    training = StackedTraining(job, trials, checkpoint, proof or NOT_PROVED, first_batches)
    if if_faster and first_batches is not None and worth_comparing(job, trials):
        must_be_faster(job, trials, training.stack, first_batches)
        # a new one: the forward passes may have changed something that no attribute shows
        training = StackedTraining(job, trials, checkpoint, training.proof, first_batches)
    yield from training.run(report)


def _same_program(job: Job, trials: Sequence[Trial]) -> list[list[Trial]]:
    """Group trials by the factors that their rules put into the forward pass.

    Where the schedule depends on the number of steps, trials of one group have the same number.
    """
    factors: dict[object, str] = {}
    groups: dict[tuple[str, object], list[Trial]] = {}
    for trial in trials:
        rule = trial.get("rule")
        if rule not in factors:
            factors[rule] = str(job.member(trial).plan.multipliers)
        steps = trial.get("steps") if job.schedule in DEPEND_ON_STEPS else None
        groups.setdefault((factors[rule], steps), []).append(trial)
    return list(groups.values())


def _capacity(job: Job, trials: Sequence[Trial]) -> int:
    def one_step() -> int:
        stack = make_stack(job, [job.member(trials[0])])
        source = job.source(trials[0])
        stack.step(*stacked_batches(job, source, 0, [trials[0].data_seed]))
        return sum(x.numel() * x.element_size() for x in stack.state().values())

    return capacity(torch.device(job.device), len(trials), one_step)
