"""Number of cores of a CPU that train a sweep, if the user does not choose the executor.

Operations of small models are too short for several cores. Processes with one thread each, which
train different trials, use all of them. The choice is counted and not timed, so that a sweep is
divided in the same way on every run:

    seconds of a trial    = updates * (LAUNCH * tensors + 6 * rows * weights / SPEED)
    one process           the products of large matrices use all cores, everything else one
    several processes     the largest unit of work first, each with one core

A row is a token of a sequence of ids, or a sample. Models that use their weights at many places,
such as convolutions, take longer than that: they are divided later than would be possible. To judge
whether one process can use all cores, every place of an image counts as a row.
"""

import heapq
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from orderone.seeding import preserved, seeded
from orderone.sweeping.example_loss import compute_example_loss
from orderone.sweeping.executors import default_workers
from orderone.sweeping.executors.forked import shared_with_forks
from orderone.sweeping.job import BASE_SEED, Job
from orderone.sweeping.stacked.free_memory import free_memory
from orderone.sweeping.trial import Trial
from orderone.torch_compat import tree_leaves
from orderone.training.code_state import global_texts
from orderone.training.resume_check import changed

LAUNCH = 30e-6  # seconds of an update for each tensor of the model, whatever its size
SPEED = 5e10  # operations per second of one core
LEAST = 2.0  # seconds of work that are worth dividing; starting processes takes 0.1 to 0.2 s
FASTER = 0.8  # of the time of one process: several must take less
ALL_CORES = 0.9  # of an additional core that the largest products use
HALF_USED = 3e7  # operations of a product that uses half of that
STATE = 32  # bytes for each weight: momenta, gradients, temporary tensors
SHARE_OF_MEMORY = 0.5

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Work:
    """Estimated seconds of a training on one core, and on `threads` of them."""

    one_core: float
    one_process: float


@dataclass(frozen=True)
class Division:
    """Number of processes, and why a sweep that is worth dividing is not divided."""

    processes: int
    seconds: float = 0.0
    obstacle: str | None = None

    @property
    def note(self) -> str | None:
        """Text for the notes of a sweep."""
        estimate = f"estimated {self.seconds:.0f} s on one core"
        if self.processes > 1:
            return (
                f"executor: {self.processes} processes with one thread each ({estimate});"
                ' executor="here" trains in this process'
            )
        if self.obstacle is not None:
            return (
                f"executor: one process ({estimate}), because {self.obstacle};"
                ' executor="processes" uses several cores'
            )
        return None


def usable_cores(job: Job) -> int:
    """Return the number of cores that torch may use in this process; 1 where they cannot be shared.

    Compiled stacks stay together, since every process would compile them.
    """
    if torch.device(job.device).type != "cpu" or job.compile:
        return 1
    return min(torch.get_num_threads(), default_workers(job.device))


def work_of(job: Job, trial: Trial, shapes: Shapes, rows: "Rows", threads: int) -> Work:
    """Return the work of one trial."""
    updates = job.settings_of(trial).steps * job.accumulate
    launches = LAUNCH * len(shapes)
    weights = sum(map(prod, shapes.values()))
    products = 6 * rows.fewest * weights / SPEED
    largest = 2 * rows.most * max(map(prod, shapes.values()), default=0)
    share = ALL_CORES * largest / (largest + HALF_USED)
    together = launches + products / (1 + share * (threads - 1))
    return Work(updates * (launches + products), updates * together)


@dataclass(frozen=True)
class Rows:
    """Rows of the matrix products of a batch: at least, and at most."""

    fewest: int
    most: int


def rows_of(batch: object) -> Rows:
    """Return the rows of a batch, read from its first tensor."""
    for leaf in tree_leaves(batch):
        if not isinstance(leaf, Tensor) or not leaf.ndim:
            continue
        samples = len(leaf)
        if not (leaf.is_floating_point() or leaf.is_complex()):
            return Rows(leaf.numel(), leaf.numel())  # ids
        if leaf.ndim <= 3:  # samples, or sequences of vectors
            rows = prod(leaf.shape[:-1]) or 1
            return Rows(rows, rows)
        return Rows(samples, leaf.numel() // max(1, leaf.shape[1]))
    return Rows(1, 1)


def divided(
    units: Sequence[Sequence[Trial]], work: Mapping[str, Work], processes: int
) -> tuple[list[Sequence[Trial]], float]:
    """Return the units, the longest first, and the seconds until the last process has ended."""
    costs = [sum(work[trial.key].one_core for trial in unit) for unit in units]
    order = sorted(range(len(units)), key=lambda k: -costs[k])
    ends = [0.0] * processes
    for k in order:
        heapq.heappush(ends, heapq.heappop(ends) + costs[k])
    return [units[k] for k in order], max(ends)


def choose(
    job: Job,
    trials: Sequence[Trial],
    units: Sequence[Sequence[Trial]],
    shapes: Mapping[str, Shapes],
    store: Path | None,
) -> Division:
    """Return how many processes train these trials, in these units of work for all cores."""
    cores = min(usable_cores(job), len(units))
    if cores < 2 or any(trial.program not in shapes for trial in trials):
        return Division(1)
    work = work_of_all(job, trials, shapes, usable_cores(job))
    seconds = sum(one.one_core for one in work.values())
    alone = sum(one.one_process for one in work.values())
    if seconds < LEAST or divided(units, work, cores)[1] > FASTER * alone:
        return Division(1, seconds)
    largest = max(sum(map(prod, shapes[trial.program].values())) for trial in trials)
    free = free_memory()
    if free is not None and cores * STATE * largest > SHARE_OF_MEMORY * free:
        return Division(1, seconds, "the models of several processes may not fit in memory")
    obstacle = shared_with_forks(store)
    if obstacle is not None:
        return Division(1, seconds, f"forked processes could disturb each other: {obstacle}")
    changes = _changed_variable(job, trials[0])
    if changes is not None:
        return Division(
            1, seconds, f"a trial changes {changes}, and each process would change a copy"
        )
    return Division(cores, seconds)


def _changed_variable(job: Job, trial: Trial) -> str | None:
    """Build and call a model once more; return a variable of the user's code that this changes.

    It may be a list that collects what the user wants to read after the sweep.
    """
    with suppress(Exception), preserved():  # the code of the user may raise anything
        with seeded(BASE_SEED):
            model = job.built(trial.settings).model
        code = [job.loss, job.build, *vars(job.data).values()]
        before = global_texts(model, *code)
        compute_example_loss(job, trial)
        names = changed(before, global_texts(model, *code))
        if names:
            return names[0]
    return None


def work_of_all(
    job: Job, trials: Sequence[Trial], shapes: Mapping[str, Shapes], threads: int
) -> dict[str, Work]:
    """Return the work of each trial by its key."""
    rows: dict[object, Rows] = {}
    work: dict[str, Work] = {}
    for trial in trials:
        size = trial.get("batch_size")
        if size not in rows:
            rows[size] = rows_of(job.source(trial).at(0, 0))
        work[trial.key] = work_of(job, trial, shapes[trial.program], rows[size], threads)
    return work
