"""Estimate, before a stack is built, what it can save on a CPU: the overhead of calls.

A stack makes one call for all its members, but its arithmetic takes as long as theirs. So the time
of calls in an update of one member is all that a stack can save. It is estimated from the number of
operations of an update, and the time of an operation whose tensors have a single entry:

    share of calls = operations x time of a tiny operation / time of an update

That is too low by a factor of 3 to 4, since layers of real models call more Python code. With a
share of 0.11, 16 GPTs train 1.5 times as fast in a stack as alone, and 4 GPTs 1.15 times. With 0.03
and less, no network was faster in a stack (`benchmarks/cpu_choice.py`). There, not even a
comparison with the stack is worth its time.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from orderone.seeding import preserved
from orderone.sweeping.job import Job
from orderone.sweeping.sequential import make_step
from orderone.sweeping.stacked.first_steps import fastest_update
from orderone.sweeping.trial import Trial
from orderone.torch_compat import TorchDispatchMode, tree_map
from orderone.training.source import Batch, Source
from orderone.training.stacked.clock import seconds_of_work
from orderone.training.stacked.errors import NotStackable
from orderone.training.step import Step

UPDATES = 2  # timed, after the one whose operations are counted: the first is slow
COST = UPDATES + 1
WORTH = 25 * COST  # updates of all members: the estimate costs 4 % of them
LEAST_SHARE = 0.05
TINY_LAYERS = 20
REPEATS = 5


class Counted(TorchDispatchMode):
    """Counts the operations that torch dispatches."""

    number: int = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        self.number += 1
        return func(*args, **(kwargs or {}))


def worth_estimating(job: Job, trials: Sequence[Trial]) -> bool:
    """Return whether the trainings take much longer than the estimate."""
    if torch.device(job.device).type != "cpu" or job.compile:
        return False
    updates = sum(job.settings_of(trial).steps for trial in trials)
    return len(trials) > 1 and updates >= WORTH


def must_save_calls(job: Job, trials: Sequence[Trial]) -> None:
    """Raise NotStackable if calls take only a small share of an update of one member."""
    with preserved():
        step = _step_of(job, trials[0])
        operations = _operations(step)
        seconds = fastest_update(step, UPDATES, 1)
        share = operations * seconds_per_operation() / seconds
    if share < LEAST_SHARE:
        raise NotStackable(
            f"an update of one member takes {1e3 * seconds:.3g} ms for {operations} operations."
            " Their overhead, which is all that a stack saves, is too small a part of it; pass"
            " stacked=True to stack them",
            "stack-slower",
        )


def _step_of(job: Job, trial: Trial) -> Step:
    """Return updates of a member that read the first batches again and again."""
    step = make_step(job, trial, job.member(trial), Step)
    batches = [step.source.at(part, step.data_seed) for part in range(job.accumulate)]

    def batch(number: int, seed: int) -> Batch:
        return tree_map(_copy, batches[number])  # models may write into them

    return replace(step, source=Source("the first batches", batch))


def _copy(leaf: object) -> object:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    return leaf


def _operations(step: Step) -> int:
    with Counted() as counted:
        step.backward(0)
        step.apply()
    return counted.number


def seconds_per_operation() -> float:
    """Return the time of an operation of a layer whose tensors have one entry."""
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(TINY_LAYERS)))
    x = torch.ones(1, 1)
    with Counted() as counted:
        model(x).backward(torch.ones(1, 1))
    seconds: list[float] = []
    for _ in range(REPEATS):
        begin = seconds_of_work()
        model(x).backward(torch.ones(1, 1))
        seconds.append(seconds_of_work() - begin)
    return min(seconds) / counted.number
