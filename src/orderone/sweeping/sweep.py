"""`sweep`: train every point of a space, store the results, and run only what is missing."""

import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from inspect import signature
from os import PathLike
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError, function, one_of, with_code
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.loading.forms import needs_batch_size
from orderone.observe.precision import read_precision
from orderone.optimizers.table import algorithm, class_name
from orderone.planning import Plan
from orderone.planning.build import ABSOLUTE
from orderone.planning.options import OPTION_NAMES
from orderone.planning.settings import SettingInput
from orderone.planning.start_setting import InitInput
from orderone.seeding import seeded
from orderone.sweeping.driver import Driver
from orderone.sweeping.example_loss import know_losses_of_process
from orderone.sweeping.executors import read_executor
from orderone.sweeping.inputs import (
    Base,
    Build,
    Optimizers,
    PrunerInput,
    Rules,
    SamplerInput,
    Sizes,
    SpaceInput,
    Stacked,
)
from orderone.sweeping.job import Job, call_build, check_build, read_built
from orderone.sweeping.options import Execution, Search, Training, accepts_groups
from orderone.sweeping.pruning import read_pruner
from orderone.sweeping.result import Sweep
from orderone.sweeping.samplers import read_sampler
from orderone.sweeping.space import Space, read_space
from orderone.sweeping.store import Store
from orderone.sweeping.trial import SIZES, TUNED
from orderone.training.deterministic import deterministic_kernels
from orderone.training.inputs import (
    CollateFunction,
    Data,
    Device,
    FilePath,
    LossFunction,
    ScheduleInput,
)
from orderone.training.settings import optional_count, read_device
from orderone.training.source import read_source
from orderone.training.stacked.capability import stacking_failure
from orderone.training.stacked.errors import NotStackable

_SET_BY_TRIALS = {"rule", "optimizer", "C", "Lambda", *TUNED}
PLAN_OPTIONS = tuple(name for name in OPTION_NAMES if name not in _SET_BY_TRIALS)
REPORTS = 20  # reports per training


@accepts_groups
def sweep(
    build: Build,
    space: SpaceInput,
    *,
    widths: Sizes = None,
    depths: Sizes = None,
    rule: Rules = "mup",
    optimizer: Optimizers = None,
    lr: SettingInput | None = None,
    weight_decay: SettingInput | None = None,
    init_scale: SettingInput | None = None,
    init: InitInput | None = None,
    base: Base = None,
    data: Data = None,
    batch_size: Count | None = None,
    collate_fn: CollateFunction = None,
    held_out: Data = None,
    steps: Count | None = None,
    loss: LossFunction = None,
    schedule: ScheduleInput = "constant",
    warmup: Count = 0,
    clip: Number | None = None,
    accumulate: Count = 1,
    precision: Name = "float32",
    evaluate_every: Count | None = None,
    store: FilePath = None,
    executor: Name | None = None,
    workers: Count | None = None,
    address: Name | None = None,
    together: Count | None = None,
    sampler: SamplerInput = "grid",
    trials: Count | None = None,
    sampler_seed: Count = 0,
    pruner: PrunerInput = None,
    stacked: Stacked = "auto",
    device: Device = None,
    compile: bool | None = None,
    graphs: bool | None = None,
    deterministic: bool = False,
    verify: bool | None = None,
    checkpoint_seconds: Number = 60.0,
    name: Name | None = None,
    progress: bool = True,
    training: Training | None = None,
    search: Search | None = None,
    execution: Execution | None = None,
    **plan_options: object,
) -> Sweep:
    """Train `build(width)` at every point of `space`, for every width and rule.

    Trials that are in the store are not run again.

    Args:
        build: A function of the width (and depth, and other arguments that the space names) that
            returns an nn.Module, or (module, optimizer): then the class of the optimizer and its
            settings are used (betas, eps, weight decay, momentum), and groups are those of the
            rule. Settings in the space come before those of the optimizer.
        space: Values to try: {"lr": log_grid(1e-4, 1e-1, 16), "seed": range(4)}. Keys are lr,
            weight_decay, beta1, beta2, momentum, eps, init_scale, init, rule, optimizer,
            batch_size, steps, seed, data_seed, or keyword arguments of `build`. "lr.embedding" is
            the learning rate of a role, "lr.*.q_proj.weight" that of a pattern of tensors,
            "lr.muon" that of an optimizer; weight_decay, init_scale and init likewise. Learning
            rates, starts and the like are for the base size.
        widths: Widths to compare.
        depths: Depths to compare.
        rule: As in `plan`; or a list, to compare several.
        optimizer: As in `plan`; or a list, to compare several. By default the one that `build`
            returns, otherwise adamw.
        lr: As in `plan`: a value or mapping that all trials share, apart from what the space sets.
        weight_decay: The same for weight decay.
        init_scale: The same for factors of the initial sizes.
        init: The same for the start.
        base: Size that learning rates are meant for (a width, or {"width": 64, "depth": 2}), or
            any base that `plan` accepts. By default the smallest size.
        data: A DataLoader, an iterable of batches, a data set with `batch_size`, a task of
            `orderone.data`, a function of (step, seed) that returns a batch, or one batch for all
            steps. The page "Your data" has an example of each.
        batch_size: Samples in a batch, for a data set, or instead of the size of a DataLoader. A
            function gets it if it has a parameter of this name.
        collate_fn: Function that makes a batch of a list of samples, for a data set.
        held_out: Data of the same forms that trials are compared by; one pass over it is read once
            and stays in memory. By default that of the task, or none: then trials are compared by
            the mean training loss of the last tenth of the steps.
        steps: Updates of every training.
        loss: As in `coord_check`; by default the loss of the task, the loss that the model returns,
            or cross entropy or mean squared error by the type of the targets.
        schedule: Shape of the factor of all learning rates after the warm-up: constant, linear or
            cosine.
        warmup: Steps at the start during which the factor rises to 1.
        clip: Largest norm of the gradient; a larger gradient is scaled down.
        accumulate: Batches per update.
        precision: float32, bfloat16 or float16 (autocast), or float64.
        evaluate_every: Steps between held-out losses; by default at the end only.
        store: File for results (SQLite). The same call with the same store runs only what is
            missing.
        executor: "here" (this process), "processes" or "ray". By default this process; for a long
            study on a CPU, processes that are forked from it, as many as torch may use threads
            (Linux; `notes` says the choice).
        workers: Number of processes or tasks; by default one per GPU or core.
        address: Address of a Ray cluster, or "auto".
        together: Number of trials that are trained in one program (by default as many as fit in
            memory), and number of points that a sampler proposes at a time (by default 8).
        sampler: "grid", "random", "tpe", "cmaes", or a sampler of Optuna.
        trials: Points to try for every rule and size, if the sampler is not the grid.
        sampler_seed: Seed of a random sampler.
        pruner: "median", "halving" or a pruner of Optuna: stops poor trials early.
        stacked: "auto" trains trials of the same shape in one program where that is possible,
            False never does, True raises an error where it is not possible. Losses are those of
            stand-alone runs; on a GPU, dropout and other random draws of a forward pass have other
            values with the same distribution.
        device: By default a GPU if there is one.
        compile: Whether the steps of stacks are compiled. By default (None) they are, on a GPU, if
            the study is long enough to save more time than compiling takes; `notes` says the
            choice. If compiling fails or takes more than 90 seconds, stacks are trained without it.
            Passes of trainings that cannot be stacked or captured are compiled on the same
            condition, and only if they are then faster and give the same losses.
        graphs: Whether training uses CUDA graphs; by default if they save time.
        deterministic: Whether to use only kernels that give the same bits every time. They may be
            slower, and torch raises an error where it has none.
        verify: Whether two members of every stack first take two steps in the stack and alone. If
            they differ by more than rounding, trials are trained one after another, and a note
            names the first module that differs. The result's `verified` says how each stack was
            proved. A captured or compiled step is compared with the stack itself, and not used if
            it deviates. False leaves all this out.
        checkpoint_seconds: Time between checkpoints of running trials; they are written beside the
            store.
        name: Name of `build`, `loss` and a data function in the store, instead of their code.
            Change it when you change them.
        progress: Whether to draw a progress bar on a terminal.
        training: Settings of the training as one value of `orderone.Training`, instead of keywords
            or together with them.
        search: The same for settings of the search: `orderone.Search`.
        execution: The same for settings of the execution: `orderone.Execution`.
        plan_options: Other options of `plan`: depth, gauge, decay, no_decay, overrides, ...

    Raises:
        Interrupted: On Ctrl-C and SIGTERM; a KeyboardInterrupt with the finished trials.
        ClusterLost: If a Ray cluster does not answer any more; it has the finished trials, too.
    """
    del training, search, execution  # `accepts_groups` has spread them over the keywords
    for option in plan_options:
        one_of(option, PLAN_OPTIONS, "option of sweep or plan", also=signature(sweep).parameters)
    fixed = {"lr": lr, "weight_decay": weight_decay, "init_scale": init_scale, "init": init}
    read = _read_space_of(build, space, widths, depths, rule, optimizer, fixed)
    amounts = _read_amounts(read, steps, batch_size, data)
    base_sizes, other_base = _read_base(base, read)
    function(loss, "loss", "of the output and the batch")
    job = Job(
        build=build,
        data=read_source(
            data,
            amounts.batch_size,
            collate_fn,
            held_out=held_out,
            held_out_size=batch_size,
            hold=max(amounts.steps) * count(accumulate, "accumulate"),
        ),
        steps=max(amounts.steps),
        sweeps_steps="steps" in read.amounts,
        batch_size=None if batch_size is None else count(batch_size, "batch_size"),
        loss=loss,
        schedule=schedule,
        warmup=count(warmup, "warmup", least=0),
        clip=None if clip is None else real(clip, "clip", above=0),
        accumulate=count(accumulate, "accumulate"),
        precision=read_precision(precision),
        evaluate_every=optional_count(evaluate_every, "evaluate_every"),
        base_sizes=base_sizes,
        base=other_base,
        rules=read.rules,
        optimizers=read.optimizers,
        plan_options=plan_options,
        name=None if name is None else str(name),
        device=read_device(device),
        report_every=max(1, min(amounts.steps) // REPORTS),
        checkpoint_seconds=real(checkpoint_seconds, "checkpoint_seconds", least=0),
        together=optional_count(together, "together"),
        compile=None if compile is None else bool(compile),
        graphs=None if graphs is None else bool(graphs),
        deterministic=bool(deterministic),
        verify=verify is None or bool(verify),
    )
    _check_trials(job, read)
    know_losses_of_process(job)
    stacked = _read_stacked(stacked)
    seed = count(sampler_seed, "sampler_seed", least=0)
    chosen = read_sampler(sampler, job, read, trials, job.together, seed)
    pruning = None if pruner is None else read_pruner(pruner, job, read)
    with ExitStack() as stack:
        # `build` may draw on the GPU, so this comes before the first model
        stack.enter_context(deterministic_kernels(job.deterministic, torch.device(job.device)))
        opened = None if store is None else stack.enter_context(Store(store))
        run_by = read_executor(executor, workers, address, job.device)
        driver = Driver(job, chosen, pruning, opened, run_by, stacked, quiet=not progress)
        return driver.run()


def _read_space_of(
    build: Build,
    space: SpaceInput,
    widths: Sizes,
    depths: Sizes,
    rule: Rules,
    optimizer: Optimizers,
    fixed: Mapping[str, object],
) -> Space:
    """Return the validated space; its optimizer is the one that `build` returns, if it does."""
    if optimizer is None:
        first_optimizer = "adamw"
    else:
        first_optimizer = optimizer
    read = read_space(space, widths, depths, rule, first_optimizer, fixed)
    check_build(build, list(read.sizes), read.arguments)
    built_kind = _built_optimizer(build, read)
    if built_kind is None:
        return read
    if optimizer is not None or "optimizer" in space:
        _check_same_optimizer(read, built_kind)
    return read_space(space, widths, depths, rule, built_kind, fixed)


def _check_trials(job: Job, space: Space) -> None:
    """Raise an InputError if the schedule or the batch size of any trial is wrong."""
    for arm in space.all_arms():
        trial = job.trial(arm)
        _ = job.settings_of(trial)
        _ = job.source(trial)


def _read_stacked(stacked: Stacked) -> Stacked:
    """Return the validated option.

    It is False, with a warning, if this version of torch cannot train models in one program.
    """
    if stacked not in (True, False, "auto"):
        raise InputError(
            f'stacked: expected True, False or "auto", got {stacked!r}', argument="stacked"
        )
    if stacked is False:
        return False
    failure = stacking_failure()
    if failure is None:
        return stacked
    if stacked is True:
        raise NotStackable(failure, "torch-cannot-stack", argument="stacked")
    warnings.warn(
        with_code(f"{failure}. Trials are trained one after another.", "torch-cannot-stack"),
        stacklevel=3,
    )
    return False


@dataclass(frozen=True)
class _Amounts:
    """Steps of the trials, and the batch size to read the data with."""

    steps: tuple[int, ...]
    batch_size: int | None


def _read_amounts(
    space: Space, steps: Count | None, batch_size: Count | None, data: Data
) -> _Amounts:
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        if name in space.amounts and value is not None:
            raise InputError(
                f"{name}: expected it in the space or as an argument, got both; remove one",
                "given-twice",
                argument=name,
            )
    if "steps" in space.amounts:
        all_steps = space.amounts["steps"]
    else:
        all_steps = (count(steps, "steps"),)
    size = None
    if batch_size is not None:
        size = count(batch_size, "batch_size")
    elif "batch_size" in space.amounts and needs_batch_size(data):
        size = 1  # trials set it; any size serves to read the data
    return _Amounts(all_steps, size)


def _built_optimizer(build: Build, space: Space) -> type[Optimizer] | None:
    """Return the class of the optimizer that `build` returns for the first point, if it does.

    Errors of the user's code are left to the check of all trials, which names the settings.
    """
    point: dict[str, Any] = {**space.all_arms()[0], **next(space.grid(), {})}
    sizes = {name: point[name] for name in SIZES if name in point}
    arguments = {name: point[name] for name in space.arguments}
    try:
        with seeded(0):
            built = call_build(build, sizes, arguments)
    except Exception:  # the user's code may raise anything
        return None
    if isinstance(built, (tuple, list)):
        found = read_built(built).optimizer
        return None if found is None else found.kind
    return None


def _check_same_optimizer(space: Space, built: type[Optimizer]) -> None:
    if space.choices["optimizer"] != (algorithm(built).label,):
        raise InputError(
            f"optimizer: build returns {class_name(built)}, and optimizer="
            f"{', '.join(space.choices['optimizer'])} was passed; remove one of them",
            "optimizer-given-twice",
            argument="optimizer",
        )


def _read_base(base: Base, space: Space) -> tuple[dict[str, int], Base]:
    """Return the sizes of a base that `build` makes, and any other kind of base as it is."""
    sizes: dict[str, int] = {}
    for size_name, values in space.sizes.items():
        sizes[size_name] = min(values)
    if base is None:
        return sizes, None
    if isinstance(base, Mapping) and set(base) <= set(SIZES):
        for size_name, size in base.items():
            sizes[size_name] = count(size, f"base {size_name}")
        return sizes, None
    if isinstance(base, (nn.Module, Mapping, Plan)) or base == ABSOLUTE:
        return {}, base
    if isinstance(base, (str, PathLike)):
        return {}, Plan.load(base)
    growing = [size_name for size_name, values in space.sizes.items() if len(values) > 1]
    axis = (growing or list(sizes) or ["width"])[0]
    sizes[axis] = count(base, "base")
    return sizes, None
