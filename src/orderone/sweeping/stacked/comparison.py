"""Comparison of speed on a CPU: a few steps of the stack, and of one member alone.

A stack avoids the overhead of many small operations, but `vmap` has an overhead of its own. Two
members, or batches that keep a core busy, may train faster one after another.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from orderone.seeding import preserved
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import make_step
from orderone.sweeping.stacked.first_steps import FirstSteps, fastest_update
from orderone.sweeping.stacked.verify import FirstBatches
from orderone.sweeping.trial import Trial
from orderone.torch_compat import tree_map
from orderone.training.source import Batch
from orderone.training.stacked.clock import seconds_of_work
from orderone.training.stacked.errors import NotStackable
from orderone.training.stacked.stack import Stack
from orderone.training.stacked.ways import MemberData
from orderone.training.step import Step

WORTH_MEASURING = 50  # batches of a training; the comparison costs about four of them
# Updates of one member alone. The first ones are slow: tensors of the optimizer are made, and the
# caches of the processor hold other tensors.
UPDATES_ALONE = 5
SHARE = 0.02  # of the steps of a training, for timing the stack
CLEARLY = 1.25  # times slower: the first measurement decides
WORTH_REPEATING = 500  # updates: a second measurement costs about ten of them, and two stacks
MARGIN = 1.0  # a stack that is slower by any measured amount is not used


class LooksSlower(Exception):  # noqa: N818  # not an error: a second measurement decides
    """A stack seems to be slower than its members one after another."""


def worth_comparing(job: Job, trials: Sequence[Trial]) -> bool:
    """Return whether to measure both ways."""
    if torch.device(job.device).type != "cpu":
        return False
    steps = min(job.settings_of(trial).steps for trial in trials)
    return steps * job.accumulate >= WORTH_MEASURING


def must_look_faster(first: FirstSteps, members: int, steps: int) -> None:
    """Raise LooksSlower if the first steps, which both ways have taken, say so.

    Raise NotStackable if they say it clearly, or if the training is too short for a second
    measurement. The first steps of a stack are lost if its members begin anew: what counts is the
    time of those that are left.
    """
    together, alone = _seconds_of_first(first)
    left = steps - first.steps
    if together * left <= MARGIN * members * alone * steps:
        return
    if steps < WORTH_REPEATING or together > CLEARLY * MARGIN * members * alone:
        raise _slower(members, together, members * alone)
    raise LooksSlower


def _seconds_of_first(first: FirstSteps) -> tuple[float, float]:
    """Return the seconds of a step of the stack, and of one of a member alone."""
    return min(first.seconds), first.seconds_alone(UPDATES_ALONE)


def must_be_faster(job: Job, trials: Sequence[Trial], stack: Stack, first: FirstBatches) -> None:
    """Raise NotStackable if a step of the stack takes longer than one of each member alone.

    The stack has been trained afterwards: use another one.
    """
    with preserved():
        together = _seconds_together(stack, first, _stack_steps(job, trials))
        alone = len(trials) * _seconds_alone(job, trials[0], first)
    if together > MARGIN * alone:
        raise _slower(len(trials), together, alone)


def _slower(members: int, together: float, alone: float) -> NotStackable:
    return NotStackable(
        f"a step of {members} members took {1e3 * together:.3g} ms in a stack and"
        f" {1e3 * alone:.3g} ms one after another; pass stacked=True to stack them",
        "stack-slower",
    )


def _stack_steps(job: Job, trials: Sequence[Trial]) -> int:
    """Return how many steps of a stack to time: as many as of a member, in a long training."""
    steps = min(job.settings_of(trial).steps for trial in trials)
    return min(max(2, int(SHARE * steps)), UPDATES_ALONE)


def _seconds_together(stack: Stack, first: FirstBatches, steps: int) -> float:
    """Return the seconds of the fastest of so many steps in a row."""
    seconds: list[float] = []
    batches = list(first.by_step.values())
    for number in range(steps):
        copies = tree_map(_copy, batches[number % len(batches)])  # models may write into them
        seconds.append(_timed(lambda b=copies: stack.step(*b)))
    return min(seconds)


def _seconds_alone(job: Job, trial: Trial, first: FirstBatches) -> float:
    """Return the seconds of an update of the first member."""
    batches: list[Batch] = []
    for parts in first.by_step.values():
        batches += [tree_map(_first_row, part) for part in parts]
    step = make_step(job, trial, job.member(trial), Step)
    step = replace(step, source=MemberData(batches).source())
    return fastest_update(step, UPDATES_ALONE, len(first.by_step))


def _first_row(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf[0].clone()
    return leaf


def _copy(leaf: object) -> object:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _timed(call: Callable[[], object]) -> float:
    started = seconds_of_work()
    call()
    return seconds_of_work() - started
