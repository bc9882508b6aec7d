"""`train`: one model, in one process or in many that `torchrun` starts."""

from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Number
from orderone.core.reals import real
from orderone.observe.batches import Loss
from orderone.planning import Plan
from orderone.seeding import preserved
from orderone.training import interrupts
from orderone.training.loop import Settings, Trained, Training
from orderone.training.schedule import schedule as read_schedule
from orderone.training.settings import PRECISIONS, optional_count
from orderone.training.sinks import read_sinks
from orderone.training.source import read_source
from orderone.training.train_checkpoint import Kept
from orderone.training.world import world


def train(
    model: Any,
    data: Any,
    steps: Count,
    *,
    optimizer: Optimizer | None = None,
    loss: Loss | None = None,
    schedule: Any = "constant",
    warmup: Count = 0,
    final: Number = 0.0,
    accumulate: Count = 1,
    clip: Number | None = None,
    precision: str = "float32",
    seed: Count = 0,
    evaluate_every: Count | None = None,
    report_every: Count = 10,
    sinks: Any = None,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_seconds: Number = 600.0,
    strategy: str | None = None,
    device: Any = None,
) -> Trained:
    """Train a planned model. The same call with the same `checkpoint` goes on where the last one
    ended.

    Args:
        model: A plan, which is applied if it was not yet; or a module, with `optimizer`.
        data: A task of `orderone.data`, a function of (step, seed) that returns a batch, or one
            batch for all steps. steps: Updates. optimizer: Instead of `plan.optimizer()`, made
            after the model is where it will train; not for sharded models. loss: As in
            `coord_check`; by default the task's, the model's own, or the usual one. schedule,
            warmup, final: One factor for all learning rates; see `orderone.training.schedule`.
            accumulate: Batches an update.
        clip: The largest norm of a gradient. precision: float32, bfloat16 (autocast) or float64.
        seed: Of the data and of dropout. evaluate_every: Updates between held-out losses; by
            default at the end only. report_every: Updates between reports to `sinks`. sinks: A path
            that ends in .jsonl, TensorBoard(folder), WandB(...), or several. checkpoint: A file
            (.safetensors) to go on from, written every `checkpoint_seconds`, on Ctrl-C, and at the
            end.
        strategy: "ddp" or "fsdp" under torchrun; by default ddp there. Each process trains on its
            rows of a batch. device: By default a GPU if there is one.
    """
    settings = Settings(
        steps=count(steps, "steps"),
        factor=read_schedule(schedule, steps, warmup, final),
        accumulate=count(accumulate, "accumulate"),
        clip=None if clip is None else real(clip, "clip", above=0),
        precision=one_of(precision, PRECISIONS, "precision"),
        seed=count(seed, "seed", least=0),
        evaluate_every=optional_count(evaluate_every, "evaluate_every"),
        report_every=count(report_every, "report_every"),
        checkpoint_seconds=real(checkpoint_seconds, "checkpoint_seconds", least=0),
    )
    source = read_source(data)
    told = read_sinks(sinks)
    _check(model, optimizer, strategy)
    with (
        world(strategy, device) as here,
        preserved(),
        interrupts.deferred(),
    ):
        kept = None if checkpoint is None else Kept(Path(checkpoint), here)
        made = Training(
            here,
            settings,
            model,
            optimizer,
            source,
            loss or source.loss,
            told if here.first else [],
        )
        return made.run(kept)


def _check(model: Any, optimizer: Optimizer | None, strategy: str | None) -> None:
    module = model.bound() if isinstance(model, Plan) else model
    if isinstance(module, nn.Module) and any(p.is_meta for p in module.parameters()):
        raise ValueError(
            "model: its tensors are on the meta device and have no values; build it on the CPU or"
            " a GPU"
        )
    if not isinstance(module, nn.Module):
        raise ValueError(
            "model: expected a plan, or an nn.Module with optimizer=...; got"
            f" {type(model).__name__}"
        )
    if optimizer is None and not isinstance(model, Plan):
        raise ValueError(
            "optimizer: expected one beside a module; give a plan (o1.plan(...)), or optimizer=..."
        )
    if optimizer is not None and strategy == "fsdp":
        raise ValueError(
            "optimizer: sharding replaces the tensors it would hold; give a plan instead, which"
            " makes its own"
        )
