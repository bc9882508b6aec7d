"""Settings of a sweep in three typed groups: the training of one model, the search, the execution.

`sweep` takes every setting as a keyword, or inside its group:

    sweep(build, space, data=task, steps=1000, workers=4, executor="processes")
    sweep(build, space, training=Training(data=task, steps=1000),
          execution=Execution(workers=4, executor="processes"))
"""

from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from functools import wraps
from typing import ParamSpec, TypeVar

from orderone.core.errors import InputError, instance
from orderone.core.inputs import Count, Name, Number
from orderone.sweeping.inputs import PrunerInput, SamplerInput, Stacked
from orderone.training.inputs import (
    CollateFunction,
    Data,
    Device,
    FilePath,
    LossFunction,
    ScheduleInput,
)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Training:
    """Settings of the training of one model; they change losses, so they identify a trial.

    Attributes:
        data: A DataLoader, an iterable of batches, a data set with `batch_size`, a task of
            `orderone.data`, a function of (step, seed) that returns a batch, or one batch for all
            steps. The page "Your data" has an example of each.
        batch_size: Samples in a batch, for a data set, a DataLoader or a function that takes it.
        collate_fn: Function that makes a batch of a list of samples, for a data set.
        held_out: Data of the same forms that trials are compared by.
        steps: Updates of every training.
        loss: As in `coord_check`; by default the loss of the task, the loss that the model returns,
            or cross entropy or mean squared error by the type of the targets.
        schedule: Factor of all learning rates: constant, linear, cosine, or a function of the step.
        warmup: Steps during which that factor rises to 1.
        clip: Largest norm of the gradient; a larger gradient is scaled down.
        accumulate: Batches per update.
        precision: float32, bfloat16 or float16 (autocast), or float64.
        evaluate_every: Steps between held-out losses; by default at the end only.
    """

    data: Data = None
    batch_size: Count | None = None
    collate_fn: CollateFunction = None
    held_out: Data = None
    steps: Count | None = None
    loss: LossFunction = None
    schedule: ScheduleInput = "constant"
    warmup: Count = 0
    clip: Number | None = None
    accumulate: Count = 1
    precision: Name = "float32"
    evaluate_every: Count | None = None


@dataclass(frozen=True)
class Search:
    """Choice of the points of the space that are tried, and of those that are stopped early.

    Attributes:
        sampler: "grid", "random", "tpe", "cmaes", or a sampler of Optuna.
        trials: Points to try for every rule and size, if the sampler is not the grid.
        sampler_seed: Seed of a random sampler.
        pruner: "median", "halving" or a pruner of Optuna: stops poor trials early.
    """

    sampler: SamplerInput = "grid"
    trials: Count | None = None
    sampler_seed: Count = 0
    pruner: PrunerInput = None


@dataclass(frozen=True)
class Execution:
    """Where and how trials are run. None of this changes a loss.

    Attributes:
        store: File for results (SQLite). The same call with the same store runs only what is
            missing.
        executor: "here" (this process), "processes" or "ray". By default this process; for a long
            study on a CPU, processes that are forked from it (Linux).
        workers: Number of processes or tasks; by default one per GPU or core.
        address: Address of a Ray cluster, or "auto".
        together: Number of trials that are trained in one program (by default as many as fit in
            memory), and number of points that a sampler proposes at a time (by default 8).
        stacked: "auto" trains trials of the same shape in one program where that is possible,
            False never does, True raises an error where it is not possible.
        device: By default a GPU if there is one.
        compile: Whether the steps of stacks are compiled; by default on a GPU if it saves time.
        graphs: Whether training uses CUDA graphs; by default if they save time.
        deterministic: Whether to use only kernels that give the same bits every time. They may be
            slower, and torch raises an error where it has none.
        verify: Whether two members of every stack first take two steps in the stack and alone; if
            they differ by more than rounding, trials are trained one after another.
        checkpoint_seconds: Time between checkpoints of running trials; they are written beside the
            store.
        progress: Whether to draw a progress bar on a terminal.
    """

    store: FilePath = None
    executor: Name | None = None
    workers: Count | None = None
    address: Name | None = None
    together: Count | None = None
    stacked: Stacked = "auto"
    device: Device = None
    compile: bool | None = None
    graphs: bool | None = None
    deterministic: bool = False
    verify: bool | None = None
    checkpoint_seconds: Number = 60.0
    progress: bool = True


GROUPS: dict[str, type[Training | Search | Execution]] = {
    "training": Training,
    "search": Search,
    "execution": Execution,
}


def accepts_groups(function: Callable[P, T]) -> Callable[P, T]:
    """Let `function` accept its keywords also as `training`, `search` and `execution`.

    The function itself gets only keywords. A setting that its group leaves at the default may be
    passed as a keyword too. Two different values raise an InputError.
    """

    @wraps(function)
    def with_groups(*args: P.args, **keywords: P.kwargs) -> T:
        for name, group_type in GROUPS.items():
            group = keywords.pop(name, None)
            if group is not None:
                remedy = f"for example orderone.{group_type.__name__}()"
                instance(group, group_type, name, remedy)
                _spread(group, name, keywords)
        return function(*args, **keywords)

    return with_groups


def _spread(group: object, group_name: str, keywords: dict[str, object]) -> None:
    """Add the fields of `group` to `keywords`."""
    for field in fields(group):  # type: ignore[arg-type]
        value = getattr(group, field.name)
        if field.name not in keywords:
            keywords[field.name] = value
        elif not _is_default(value, field) and not _same(value, keywords[field.name]):
            raise InputError(
                f"{field.name}: expected one value, got {keywords[field.name]!r} as a keyword and"
                f" {value!r} in {group_name}; remove one of them",
                argument=field.name,
            )


def _is_default(value: object, field: "Field[object]") -> bool:
    return _same(value, field.default)


def _same(value: object, other: object) -> bool:
    """Compare settings; tensors and batches are equal only if they are the same object."""
    if value is other:
        return True
    plain = (str, int, float, bool)
    return isinstance(value, plain) and isinstance(other, plain) and value == other
