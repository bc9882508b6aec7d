"""`train`: train one model, in one process or in several that `torchrun` starts."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.observe.precision import cast_model, read_precision
from orderone.optimizers.registry import set_training_mode
from orderone.planning import Plan
from orderone.planning.plan import fused_options
from orderone.planning.supported import check_optimizer
from orderone.seeding import preserved, seeded, set_seed, start_seed
from orderone.training import interrupts, training_identity
from orderone.training.deterministic import deterministic_kernels
from orderone.training.inputs import (
    CollateFunction,
    Data,
    Device,
    FilePath,
    LossFunction,
    Model,
    ScheduleInput,
    Sinks,
    UserOptimizer,
)
from orderone.training.loop import Checkpoint, TrainingLoop
from orderone.training.outcome import Trained, final_loss
from orderone.training.resume_check import copy_of, unchecked_note
from orderone.training.schedule import schedule as read_schedule
from orderone.training.settings import Settings, optional_count, read_device
from orderone.training.sharded_checkpoint import ShardedCheckpoint, is_folder
from orderone.training.sinks import read_sinks
from orderone.training.source import Source, read_source
from orderone.training.step import Step, compiled_module, current_rates
from orderone.training.train_checkpoint import TrainCheckpoint, check_path
from orderone.training.world import World, join_world


def train(
    model: Model,
    data: Data,
    steps: Count,
    *,
    optimizer: UserOptimizer = None,
    batch_size: Count | None = None,
    collate_fn: CollateFunction = None,
    held_out: Data = None,
    loss: LossFunction = None,
    schedule: ScheduleInput = "constant",
    warmup: Count = 0,
    final: Number = 0.0,
    accumulate: Count = 1,
    clip: Number | None = None,
    precision: Name = "float32",
    seed: Count = 0,
    evaluate_every: Count | None = None,
    report_every: Count = 10,
    sizes_every: Count | None = None,
    sinks: Sinks = None,
    checkpoint: FilePath = None,
    checkpoint_seconds: Number = 600.0,
    keep_checkpoints: Count = 2,
    strategy: Name | None = None,
    device: Device = None,
    compile: bool = False,
    deterministic: bool = False,
) -> Trained:
    """Train a planned model; call it again with the same `checkpoint` to continue.

    Args:
        model: A plan, which is applied if it was not yet; or a module, together with `optimizer`.
            Also (module, optimizer) or (plan, optimizer), as a `build` function returns them.
        data: A DataLoader, an iterable of batches, a data set with `batch_size`, a task of
            `orderone.data`, a function of (step, seed) that returns a batch, or one batch for all
            steps. The page "Your data" has an example of each.
        steps: Number of updates.
        optimizer: Optimizer instead of `plan.optimizer()`. Make it after moving the model to its
            device. Not for sharded models (fsdp).
        batch_size: Samples in a batch, for a data set, a DataLoader or a function that takes it.
        collate_fn: Function that makes a batch of a list of samples, for a data set.
        held_out: Data of the same forms for held-out losses; one pass over it is read once and
            stays in memory. By default that of the task.
        loss: As in `coord_check`; by default the loss of the task, the loss that the model
            returns, or cross entropy or mean squared error by the type of the targets.
        schedule: Shape of the factor of all learning rates after the warm-up: constant, linear or
            cosine; or a function, see `orderone.training.schedule`.
        warmup: Steps at the start during which the factor rises to 1.
        final: Factor at the end of a linear or cosine schedule.
        accumulate: Batches per update.
        clip: Largest norm of the gradient; a larger gradient is scaled down.
        precision: float32, bfloat16 or float16 (autocast), or float64. In float16 the loss is
            scaled as by torch.amp.GradScaler, and updates whose gradients overflow are left out.
        seed: Seed of the data and of dropout, and of the values that a start (`init`) draws.
        evaluate_every: Updates between held-out losses; by default at the end only.
        report_every: Updates between reports to `sinks`.
        sizes_every: Updates between records of the sizes of activations. The next report has them,
            relative to their start, as `sizes/NAME`; `Trained.sizes` has all of them.
        sinks: A path that ends in .jsonl, TensorBoard(folder), WandB(...), MLflow(...), or a list
            of these.
        checkpoint: File (.safetensors) to continue from. It is written every
            `checkpoint_seconds`, on Ctrl-C, and at the end. A path without suffix is a folder, in
            which every process writes its part while the training goes on (for fsdp).
        keep_checkpoints: Number of checkpoints that stay in such a folder.
        strategy: "ddp" or "fsdp" under torchrun; by default ddp there. Each process trains on its
            rows of a batch.
        device: By default a GPU if there is one.
        compile: Whether to compile the model (torch.compile). The first update then takes longer,
            and losses are the same up to rounding.
        deterministic: Whether to use only kernels that give the same bits every time. They may be
            slower, and torch raises an error where it has none.
    """
    settings = Settings(
        steps=count(steps, "steps"),
        factor=read_schedule(schedule, steps, warmup, final),
        accumulate=count(accumulate, "accumulate"),
        clip=None if clip is None else real(clip, "clip", above=0),
        precision=read_precision(precision),
        evaluate_every=optional_count(evaluate_every, "evaluate_every"),
        report_every=count(report_every, "report_every"),
        checkpoint_seconds=real(checkpoint_seconds, "checkpoint_seconds", least=0),
    )
    seed = count(seed, "seed", least=0)
    source = read_source(data, batch_size, collate_fn, held_out=held_out, held_out_size=batch_size)
    all_sinks = read_sinks(sinks)
    subject: Any = model
    if isinstance(model, (tuple, list)):
        subject, optimizer = _read_pair(model, optimizer)
    _check(subject, optimizer, strategy)
    with ExitStack() as stack:
        # before anything starts CUDA
        chosen = torch.device(read_device(device))
        stack.enter_context(deterministic_kernels(bool(deterministic), chosen))
        world = stack.enter_context(join_world(strategy, device))
        stack.enter_context(preserved())
        stack.enter_context(interrupts.deferred())
        path = _read_path(checkpoint)
        plan = subject if isinstance(subject, Plan) else None
        module = _module(subject, seed)
        module_names = training_identity.modules(module)
        step = _prepare(world, settings, module, plan, optimizer, source, seed, loss)
        if compile:
            step = replace(step, forward=compiled_module(step.forward))
        loop = TrainingLoop(step, sinks=all_sinks if world.first else [])

        # before the first step, after which groups may have counters
        identity = _identity(step, plan, module_names)
        saved = _read_checkpoint(path, world, identity, loop, keep_checkpoints)
        if sizes_every is not None:
            from orderone.measure.size_monitor import SizeMonitor  # takes a second

            monitor = SizeMonitor(
                step.forward, step.optimizer, plan=plan, every=count(sizes_every, "sizes_every")
            )
            loop.monitor = stack.enter_context(monitor)
        set_seed(seed + world.rank)  # dropout differs between processes
        note = None
        if saved is not None:
            note = unchecked_note(loop)
        trained = _run(loop, saved)
    if note is None:
        return trained
    return replace(trained, notes=(*trained.notes, note))


def _read_path(checkpoint: FilePath) -> Path | None:
    """Return the path of the checkpoint; raise an InputError if nothing can be written there."""
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    check_path(path)
    return path


def _read_checkpoint(
    path: Path | None,
    world: World,
    identity: Mapping[str, object],
    loop: TrainingLoop,
    keep: Count,
) -> TrainCheckpoint | ShardedCheckpoint | None:
    """Return the checkpoint at a path, after a comparison with the loop; None without a path."""
    if path is None:
        return None
    if is_folder(path):
        kept = count(keep, "keep_checkpoints")
        saved = ShardedCheckpoint(path, world, identity, copy_of(loop), kept)
    else:
        saved = TrainCheckpoint(path, world, identity, copy_of(loop))
    saved.verify(loop)
    return saved


def _read_pair(
    model: Sequence[Any], optimizer: Optimizer | None
) -> tuple[Plan | nn.Module, Optimizer]:
    """Return model and optimizer from a pair (model, optimizer)."""
    if len(model) != 2 or not isinstance(model[1], Optimizer):
        types = ", ".join(type(part).__name__ for part in model)
        raise InputError(
            f"model: expected (module, optimizer) or (plan, optimizer), got ({types}); pass a"
            " schedule as schedule=..., warmup=...",
            "wrong-type",
            argument="model",
        )
    if optimizer is not None:
        raise InputError(
            "optimizer: expected one, got two: in (model, optimizer) and as optimizer=...; remove"
            " one of them",
            "optimizer-given-twice",
            argument="optimizer",
        )
    return model[0], model[1]


def _module(model: Plan | nn.Module, seed: int) -> nn.Module:
    if not isinstance(model, Plan):
        return model
    if not model.applied:
        with seeded(start_seed(seed)):  # the same values in every process
            model.apply()
    return model.bound()


def _prepare(
    world: World,
    settings: Settings,
    module: nn.Module,
    plan: Plan | None,
    optimizer: Optimizer | None,
    source: Source,
    seed: int,
    loss: LossFunction,
) -> Step:
    """Move the model to its device, and make the plan's optimizer if the user passed none."""
    cast_model(module, world.device, settings.dtype)
    forward = world.wrapped(module)
    if optimizer is None:
        assert plan is not None  # `_check` made sure of that
        if world.device.type == "cuda":
            fused = fused_options(plan)
        else:
            fused = {}
        optimizer = plan.optimizer(**fused)
    if plan is not None:
        plan.check(optimizer)
    return Step(
        world=world,
        settings=settings,
        module=module,
        forward=forward,
        optimizer=optimizer,
        rates=current_rates(optimizer),
        source=source,
        data_seed=seed,
        loss_function=loss or source.loss,
        scale=settings.loss_scale(world.device),
    )


def _run(loop: TrainingLoop, checkpoint: Checkpoint | None) -> Trained:
    if checkpoint is not None:
        checkpoint.restore(loop)
    for sink in loop.sinks:
        sink.start(loop.done)
    try:
        _run_loop(loop, checkpoint)
        if loop.diverged_at is not None:
            loop.log()
            if loop.world.any(interrupts.pending()):
                raise KeyboardInterrupt
    finally:
        loop.step.restore_rates()  # the user may use the optimizer again
        set_training_mode(loop.step.optimizer, False)  # the weights are those to evaluate
        for sink in loop.sinks:
            sink.close()
    return Trained(
        model=loop.step.module,
        optimizer=loop.step.optimizer,
        losses=np.asarray(loop.losses),
        evaluation=loop.evaluation,
        loss=final_loss(loop.losses, loop.evaluation, loop.diverged_at is not None),
        diverged_at=loop.diverged_at,
        seconds=loop.seconds,
        notes=tuple(loop.step.source.notes_on(loop.done * loop.settings.accumulate)),
        sizes=() if loop.monitor is None else tuple(loop.monitor.sizes),
    )


def _run_loop(loop: TrainingLoop, checkpoint: Checkpoint | None) -> None:
    """Run the loop, and wait for a checkpoint that is being written."""
    try:
        loop.run(checkpoint)
    except BaseException as error:
        # after an interruption all processes come here; after an error of one process, only that
        everyone = loop.world.size == 1 or isinstance(error, KeyboardInterrupt)
        if everyone and isinstance(checkpoint, ShardedCheckpoint):
            checkpoint.finish()
        raise
    if isinstance(checkpoint, ShardedCheckpoint):
        checkpoint.finish()


def _identity(
    step: Step, plan: Plan | None, module_names: Mapping[str, str]
) -> Mapping[str, object]:
    """Return the settings that a checkpoint must agree with."""
    settings = step.settings
    return {
        "steps": settings.steps,
        "seed": step.data_seed,
        "accumulate": settings.accumulate,
        "precision": settings.precision,
        "clip": settings.clip,
        "schedule": training_identity.schedule_name(settings.factor),
        "data": training_identity.data_name(step.source),
        "loss": training_identity.loss_name(step.loss_function, step.source),
        **module_names,
        **training_identity.updates(plan, step.optimizer, step.rates, step.module),
    }


def _is_optimizer(optimizer: object) -> bool:
    """Return whether this has parameter groups; some libraries do not derive from torch's class.

    A class has them only as a declaration.
    """
    return not isinstance(optimizer, type) and hasattr(optimizer, "param_groups")


def _check(model: object, optimizer: UserOptimizer, strategy: Name | None) -> None:
    module = model.bound() if isinstance(model, Plan) else model
    if isinstance(module, nn.Module) and any(p.is_meta for p in module.parameters()):
        raise InputError(
            "model: its tensors are on the meta device and have no values; build it on the CPU or"
            " a GPU",
            "train-on-meta",
            argument="model",
        )
    if not isinstance(module, nn.Module):
        raise InputError(
            "model: expected a plan (o1.plan(...)), or an nn.Module with optimizer=...; got"
            f" {type(model).__name__}",
            "wrong-type",
            argument="model",
        )
    if optimizer is None and not isinstance(model, Plan):
        raise InputError(
            "optimizer: a plain nn.Module needs one; pass optimizer=..., or a plan (o1.plan(...))"
            " instead of the module",
            "train-needs-optimizer",
            argument="optimizer",
        )
    if optimizer is not None and not _is_optimizer(optimizer):
        raise InputError(
            f"optimizer: expected an optimizer of the model's parameters, got {optimizer!r};"
            " pass torch.optim.AdamW(model.parameters()), or a plan: o1.plan(model, base=...,"
            " optimizer=...)",
            "wrong-type",
            argument="optimizer",
        )
    if isinstance(optimizer, Optimizer):
        check_optimizer(module, optimizer)
    if optimizer is not None and strategy == "fsdp":
        raise InputError(
            "optimizer: fsdp replaces the parameters that this optimizer holds; pass a plan without"
            " optimizer=, so that o1.train makes the optimizer after sharding",
            "fsdp-makes-optimizer",
            argument="optimizer",
        )
