"""Training runs that differ in strategy, learning rate, weight decay and seed, as one program, for
Part II of S2 ("Effective Theory of Transformers at Initialization").

The strategy `standard` has the model's default initialization and one learning rate for all
tensors. The others are those of `orderone.plan` without a base: the tables of S2 II.1.E and II.2.E.
These tables omit the factor M of the MLP (erratum S2.3), so the factors Lambda_W = sqrt(M) and
Lambda_X = M restore them. Weight decay shrinks every group by lr wd per step, S2 (1.94).
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from orderone.data import StackedTask
from orderone.data.devices import read_device
from orderone.gallery.frames import Frame
from orderone.gallery.s2.spikes import spikes
from orderone.observe.batches import Loss
from orderone.planning import plan
from orderone.sweeping.stacked import CapturedStep, Stack
from orderone.theory import lr_factors
from orderone.torch_compat import tree_map
from orderone.training.schedule import schedule
from orderone.training.source import moved
from orderone.training.stacked.program import Program

STRATEGIES = ("standard", "neural-tangent", "hybrid", "maximal-update")
UNDECAYED = "head.bias"
MLP = 4
LOG = logging.getLogger(__name__)
COLUMNS = ["strategy", "lr", "wd", "seed", "step", "train", "loss", "accuracy", "spikes"]


@dataclass(frozen=True)
class Point:
    strategy: str
    lr: float
    wd: float
    seed: int


@dataclass(frozen=True)
class Training:
    """Settings of all training runs, S2 II.1.D and II.2.D.

    On a GPU they use bfloat16; the paper used mixed precision.
    """

    steps: int
    warmup: int
    every: int  # steps between evaluations
    shape: str  # decay of learning rates: cosine or linear
    beta2: float
    eps: float
    clip: float | None = None
    held_together: int = 1  # held-out batches that are evaluated at once
    device: str = "cpu"

    @property
    def precision(self) -> torch.dtype | None:
        if torch.device(self.device).type == "cuda":
            return torch.bfloat16
        return None


def effective(strategy: str, width: int) -> float:
    """Return the factor between the base learning rate and that of the attention matrices."""
    return lr_factors(strategy, "adamw", n=width, mlp=1)["QKVU"]


def optimizer_of(
    model: nn.Module, point: Point, how: Training, C: Mapping[str, float]
) -> Optimizer:
    """Initialize the model for the strategy; return AdamW with the strategy's learning rates."""
    betas = (0.9, how.beta2)
    undecayed = [name for name, _ in model.named_parameters() if name == UNDECAYED]
    if point.strategy == "standard":
        return AdamW(_plain_groups(model, point.wd), lr=point.lr, betas=betas, eps=how.eps)
    strategy_plan = plan(
        model,
        rule=point.strategy,
        lr=point.lr,
        weight_decay=point.wd,
        no_decay=undecayed,
        C=C,
        Lambda={"W": MLP**0.5, "X": float(MLP)},
        probe=False,
    )
    strategy_plan.apply()
    optimizer = strategy_plan.optimizer(betas=betas)
    for group in optimizer.param_groups:
        group["eps"] = how.eps  # the same for all groups, as published
    return optimizer


def _plain_groups(model: nn.Module, wd: float) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    undecayed: list[nn.Parameter] = []
    if UNDECAYED in named:
        undecayed.append(named.pop(UNDECAYED))
    return [
        {"params": [*named.values()], "weight_decay": wd},
        {"params": undecayed, "weight_decay": 0.0},
    ]


def _stacked(
    points: Sequence[Point],
    build: Callable[[Point], nn.Module],
    C: Callable[[Point], Mapping[str, float]],
    task: StackedTask,
    how: Training,
) -> Stack:
    """Return a stack with the model and the optimizer of every point."""
    models: list[nn.Module] = []
    optimizers: list[Optimizer] = []
    for point in points:
        model, optimizer = _member(point, build, C, how)
        models.append(model)
        optimizers.append(optimizer)
    return Stack(
        models,
        optimizers,
        loss=task.loss,
        device=how.device,
        precision=how.precision,
        clip=how.clip,
    )


def train(
    points: Sequence[Point],
    build: Callable[[Point], nn.Module],
    C: Callable[[Point], Mapping[str, float]],
    task: StackedTask,
    how: Training,
    score: Loss | None = None,
    until: int | None = None,
) -> pd.DataFrame:
    """Train all points; return a row for every point and evaluation.

    A row has the mean training loss and the number of spikes since the last evaluation, the
    held-out loss, and the held-out mean of `score`. Training stops after `until` steps of the
    schedule.
    """
    if read_device(how.device).type == "cuda":
        torch.cuda.empty_cache()  # memory of the graphs of earlier stacks
    stack = _stacked(points, build, C, task, how)
    held = _held(task, how)
    scored = None
    if score is not None:
        scored = Program(stack.program.model, score, how.precision)
    losses = []
    evaluations = []
    last = until or how.steps
    seeds = [point.seed for point in points]
    for step, loss in enumerate(_losses(stack, task, seeds, how, last), 1):
        losses.append(loss)
        if step % how.every == 0 or step == last:
            evaluations.append((step, _mean(stack.evaluate, held), _score(stack, scored, held)))
            LOG.info("%d trainings, step %d of %d", len(points), step, last)
    return _frame(points, torch.stack(losses).double().cpu().numpy(), evaluations)


def _member(
    point: Point,
    build: Callable[[Point], nn.Module],
    C: Callable[[Point], Mapping[str, float]],
    how: Training,
) -> tuple[nn.Module, Optimizer]:
    with torch.random.fork_rng(devices=[]):
        # drawn on the CPU, so that a GPU has the same initial weights
        torch.default_generator.manual_seed(point.seed)
        model = build(point)
        return model, optimizer_of(model, point, how, C(point))


def _losses(
    stack: Stack, task: StackedTask, seeds: Sequence[int], how: Training, last: int
) -> Iterator[Tensor]:
    """Yield the training losses of all members at each step; on a GPU from a graph."""
    factor = schedule(how.shape, how.steps, how.warmup)
    device = torch.device(how.device)
    different = list(dict.fromkeys(seeds))
    rows = torch.tensor([different.index(seed) for seed in seeds], device=device)
    update: Callable[..., Tensor] = stack.step

    def of_members(leaf: object) -> object:
        if isinstance(leaf, Tensor):
            return leaf[rows]
        return leaf

    for step in range(last):
        of_seeds = moved(task.stacked(step, different, device), device, "float32")
        batch = tree_map(of_members, of_seeds)
        if step == 0 and device.type == "cuda":
            update = CapturedStep(stack, batch)
        yield update(batch, factor=factor(step)).clone()


def _held(task: StackedTask, how: Training) -> list[Any]:
    batches = [moved(batch, torch.device(how.device), "float32") for batch in task.evaluation()]
    size = how.held_together
    joined: list[Any] = []
    for k in range(0, len(batches), size):
        joined.append(tree_map(lambda *x: torch.cat(x), *batches[k : k + size]))
    return joined


def _mean(evaluate: Callable[[Any], Tensor], held: Sequence[Any]) -> Tensor:
    """Return the mean over all held-out samples, with batches weighted by their size."""
    sizes = torch.tensor([float(len(batch[1])) for batch in held], device=held[0][1].device)
    return torch.stack([evaluate(batch).float() for batch in held]).T @ (sizes / sizes.sum())


def _score(stack: Stack, scored: Program | None, held: Sequence[Any]) -> Tensor | None:
    if scored is None:
        return None
    with torch.no_grad():
        scored.model.eval()
        return _mean(lambda batch: scored.losses(stack.tensors, batch, shared=True)[0], held)


def _frame(points: Sequence[Point], losses: np.ndarray, evaluations: Sequence[Any]) -> pd.DataFrame:
    rows = []
    begun = [spikes(column) for column in losses.T]
    last = 0
    for step, held, score in evaluations:
        loss = held.tolist()
        scores = [float("nan")] * len(points)
        if score is not None:
            scores = score.tolist()
        for k, point in enumerate(points):
            number = int(((begun[k] >= last) & (begun[k] < step)).sum())
            mean = losses[last:step, k].mean()
            settings = (point.strategy, point.lr, point.wd, point.seed)
            rows.append((*settings, step, mean, loss[k], scores[k], number))
        last = step
    return pd.DataFrame(rows, columns=COLUMNS)


def points_of(curves: Frame) -> list[Point]:
    """Return the point of every row of the frame that `train` returns."""
    columns = curves[["strategy", "lr", "wd", "seed"]]
    return [Point(*row) for row in columns.itertuples(index=False, name=None)]


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(-1) == target).float().mean()
