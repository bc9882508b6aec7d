"""`sweep`: train every point of a space, keep what came of it, and run only what is missing."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from os import PathLike
from typing import Any

import torch
from torch import nn

from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.core.reals import real
from orderone.planning import Plan
from orderone.planning.options import OPTION_NAMES
from orderone.sweeping.driver import Driver
from orderone.sweeping.executors import read_executor
from orderone.sweeping.job import Job, check_build
from orderone.sweeping.pruning import read_pruner
from orderone.sweeping.result import Sweep
from orderone.sweeping.samplers import read_sampler
from orderone.sweeping.space import Space, read_space
from orderone.sweeping.store import Store
from orderone.sweeping.trial import SIZES, TUNED
from orderone.training.source import read_source

PRECISIONS = ("float32", "bfloat16", "float64")
_TRIALS_OWN = {"rule", "optimizer", "C", "Lambda", *TUNED}
PLAN_OPTIONS = tuple(name for name in OPTION_NAMES if name not in _TRIALS_OWN)
REPORTS = 20  # in the course of a training


def sweep(
    build: Any,
    space: Any,
    *,
    widths: Any = None,
    depths: Any = None,
    rule: Any = "mup",
    optimizer: Any = "adamw",
    base: Any = None,
    data: Any = None,
    steps: Any = None,
    loss: Any = None,
    schedule: Any = "constant",
    warmup: Any = 0,
    clip: Any = None,
    accumulate: Any = 1,
    precision: Any = "float32",
    evaluate_every: Any = None,
    store: Any = None,
    executor: Any = "here",
    workers: Any = None,
    address: Any = None,
    together: Any = None,
    sampler: Any = "grid",
    trials: Any = None,
    sampler_seed: Any = 0,
    pruner: Any = None,
    stacked: Any = "auto",
    device: Any = None,
    compile: Any = False,
    graphs: Any = None,
    checkpoint_seconds: Any = 60.0,
    name: Any = None,
    progress: Any = True,
    **plan_options: Any,
) -> Sweep:
    """Train `build(width)` at every point of `space`, for every width and rule. What is in the
    store is not run again.

    Args:
        build: A function of the width (and depth, and whatever else the space names) that returns
            an nn.Module.
        space: {"lr": log_grid(1e-4, 1e-1, 16), "seed": range(4)}: lists of lr, weight_decay, beta1,
            beta2, momentum, eps, init_scale, rule, optimizer, seed, data_seed, or of keyword
            arguments of `build`. All are those of the base.
        widths, depths: Sizes to compare.
        rule, optimizer: As in `plan`; lists are compared.
        base: The size that settings belong to (a width, or {"width": 64, "depth": 2}), or what
            `plan` takes. By default the smallest.
        data: A task of `orderone.data`, a function of (step, seed) that returns a batch, or one
            batch for all steps.
        steps: Updates of every training.
        loss: As in `coord_check`; by default the task's, the model's own, or the usual one.
        schedule, warmup: Of all learning rates: constant, linear or cosine, after so many steps of
            rising.
        clip: The largest norm of a gradient.
        accumulate: Batches an update.
        precision: float32, bfloat16 (autocast) or float64.
        evaluate_every: Steps between held-out losses; by default at the end only.
        store: A file that outcomes are kept in (SQLite). The same call with the same store runs
            what is missing.
        executor: "here", "processes" or "ray".
        workers: How many processes or tasks; by default one a GPU or core.
        address: Of a Ray cluster, or "auto".
        together: Members of a stack, and points that a sampler is asked for at a time. By default
            as many as fit; 8.
        sampler: "grid", "random", "tpe", "cmaes", or a sampler of Optuna.
        trials: Points to try for every rule and size, if the sampler is not the grid.
        sampler_seed: Of what is random in it.
        pruner: "median", "halving" or a pruner of Optuna: stops trials that will not be the best.
        stacked: "auto" trains like trials in one program where that is possible, False never, True
            insists. Losses are those of stand-alone runs; dropout, and whatever else a forward pass
            draws, has other draws of the same law.
        device: By default a GPU if there is one.
        compile, graphs: Of stacked training: torch.compile, CUDA graphs.
        checkpoint_seconds: Between checkpoints of trials that are under way; they lie beside the
            store.
        name: Of `build`, `loss` and a function for data in the store, instead of their code: you
            say when they are others.
        progress: False: no bar.
        plan_options: depth, gauge, decay, no_decay, overrides, ... of `plan`.

    Raises:
        Interrupted: On Ctrl-C and SIGTERM, a KeyboardInterrupt that holds what is done.
    """
    for option in plan_options:
        one_of(option, PLAN_OPTIONS, "option of sweep or plan")
    read = read_space(space, widths, depths, rule, optimizer)
    check_build(build, list(read.sizes), read.arguments)
    job = Job(
        build=build,
        data=read_source(data),
        steps=count(steps, "steps"),
        loss=_function(loss, "loss"),
        schedule=schedule,
        warmup=count(warmup, "warmup", least=0),
        clip=None if clip is None else real(clip, "clip", above=0),
        accumulate=count(accumulate, "accumulate"),
        precision=one_of(precision, PRECISIONS, "precision"),
        evaluate_every=None if evaluate_every is None else count(evaluate_every, "evaluate_every"),
        rules=read.rules,
        optimizers=read.optimizers,
        plan_options=plan_options,
        name=None if name is None else str(name),
        device=_device(device),
        report_every=max(1, count(steps, "steps") // REPORTS),
        checkpoint_seconds=real(checkpoint_seconds, "checkpoint_seconds", least=0),
        together=None if together is None else count(together, "together"),
        compile=bool(compile),
        graphs=None if graphs is None else bool(graphs),
        **_base(base, read),
    )
    _ = job.factor  # reads the schedule
    if stacked not in (True, False, "auto"):
        raise ValueError(f'stacked: expected True, False or "auto", got {stacked!r}')
    chosen = read_sampler(
        sampler, job, read, trials, job.together, count(sampler_seed, "sampler_seed", least=0)
    )
    pruning = None if pruner is None else read_pruner(pruner, job, read)
    with ExitStack() as stack:
        kept = None if store is None else stack.enter_context(Store(store))
        run_by = read_executor(executor, workers, address, job.device)
        return Driver(job, chosen, pruning, kept, run_by, stacked, quiet=not progress).run()


def _function(given: Any, name: str) -> Callable[..., Any] | None:
    if given is not None and not callable(given):
        raise ValueError(f"{name}: expected a function, got {given!r}")
    return given


def _device(given: Any) -> str:
    if given is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device: expected cpu or cuda, got {given!r}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device: torch sees no GPU, got {given!r}; say device='cpu'")
    return str(found)


def _base(given: Any, space: Space) -> dict[str, Any]:
    """Sizes of a base that `build` makes; or a base as `plan` takes it."""
    smallest = {name: int(min(sizes)) for name, sizes in space.sizes.items()}  # type: ignore[type-var, arg-type]
    if given is None:
        return {"base_sizes": smallest}
    if isinstance(given, Mapping) and set(given) <= set(SIZES):
        return {
            "base_sizes": smallest
            | {name: count(size, f"base {name}") for name, size in given.items()}
        }
    if isinstance(given, (nn.Module, Mapping, Plan)):
        return {"base": given}
    if isinstance(given, (str, PathLike)):
        return {"base": Plan.load(given)}
    growing = (
        [name for name, sizes in space.sizes.items() if len(sizes) > 1]
        or list(smallest)
        or ["width"]
    )
    return {"base_sizes": smallest | {growing[0]: count(given, "base")}}
