"""`run_stacked`: train trials of one architecture in as few programs as memory allows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from orderone.seeding import preserved
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import Report
from orderone.sweeping.stacked.call_overhead import must_save_calls, worth_estimating
from orderone.sweeping.stacked.capacity import capacity, fastest
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
from orderone.torch_compat import tree_leaves
from orderone.training.outcome import Outcome
from orderone.training.source import Batch
from orderone.training.stacked.errors import is_out_of_memory

DEPEND_ON_STEPS = ("linear", "cosine")
SPLIT = "split"  # fact of an outcome: why its stack is smaller than it could be
LARGEST_ENTRY = 8  # bytes
COPIES = 8  # of the weights: momenta, gradients, temporary tensors
SMALL_BATCH = 2**17  # entries; tiny models with such batches need no measurement


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
        if if_faster and worth_estimating(job, group):
            must_save_calls(job, group)
        most = job.together or _capacity(job, group)
        size = job.together or equal_size(len(group), most)
        note = None
        if most < fastest(torch.device(job.device), len(group)) and job.together is None:
            note = _split(len(group), most)
        for first in range(0, len(group), size):
            part = group[first : first + size]
            yield from _noted(note, _run(job, part, report, checkpoint, if_faster))


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
    except RuntimeError as error:
        if len(trials) == 1 or not is_out_of_memory(error):
            raise
    torch.cuda.empty_cache()
    left = [trial for trial in trials if trial.key not in ended]
    middle = len(left) // 2
    note = _split(len(trials), max(1, len(left) - middle))
    for half in (left[:middle], left[middle:]):
        if half:
            yield from _noted(note, _run(job, half, report, checkpoint))


def _split(members: int, most: int) -> str:
    return (
        f"stacks of at most {most} members instead of one stack of {members}: more do not fit in"
        " the free memory"
    )


def _noted(note: str | None, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Add the reason for a smaller stack to outcomes; that of the smallest stack remains."""
    for outcome in outcomes:
        if note is not None and SPLIT not in outcome.facts:
            outcome = replace(outcome, facts={**outcome.facts, SPLIT: note})
        yield outcome


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
            steps = training.settings.steps
            training.accept = lambda first: must_look_faster(first, len(trials), steps)
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
        if job.schedule in DEPEND_ON_STEPS:
            steps = trial.get("steps")
        else:
            steps = None
        groups.setdefault((factors[rule], steps), []).append(trial)
    return list(groups.values())


def _capacity(job: Job, trials: Sequence[Trial]) -> int:
    source = job.source(trials[0])

    def batches() -> list[Batch]:
        return stacked_batches(job, source, 0, [trials[0].data_seed])

    def one_step() -> int:
        stack = make_stack(job, [job.member(trials[0])])
        stack.step(*batches())
        return sum(x.numel() * x.element_size() for x in stack.state().values())

    @cache
    def weights() -> int:
        return sum(p.numel() for p in job.member(trials[0]).model.parameters())

    def bound_of(entries: int) -> int:
        """Return more bytes than a member needs with batches of so many entries.

        For each entry, there are usually fewer activations than weights.
        """
        return LARGEST_ENTRY * weights() * (entries + COPIES)

    def bound_of_batch() -> int:
        leaves = [leaf for leaf in tree_leaves(batches()[0]) if isinstance(leaf, Tensor)]
        return bound_of(sum(leaf.numel() for leaf in leaves))

    device = torch.device(job.device)
    if device.type != "cpu":
        return capacity(device, len(trials), one_step)
    with preserved():
        bounds = (lambda: bound_of(SMALL_BATCH), bound_of_batch)  # the first reads no batch
        return capacity(device, len(trials), one_step, bounds, job.processes)
