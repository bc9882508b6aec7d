"""Run a copy of a learning-rate schedule, without its optimizer, and read every step's rates."""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.torch_compat import CHILD_SCHEDULERS, SEQUENTIAL_MILESTONES

STEPS = 1000
MOST_STEPS = 1_000_000
LENGTHS = (
    "total_steps",
    "T_max",
    "T_0",
    "total_iters",
    "total_size",
    "step_size",
    "patience",
    "last_epoch",
)


def rates_of(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


class _StandIn(Optimizer):
    """Optimizer with the settings of another one, one empty tensor per group, and no state."""

    def __init__(self, optimizer: Optimizer):
        groups: list[dict[str, Any]] = []
        for group in optimizer.param_groups:
            settings = {key: group[key] for key in group.keys() - {"params", "param_names"}}
            groups.append({**copy.deepcopy(settings), "params": [torch.empty(0)]})
        super().__init__(groups, dict(getattr(optimizer, "defaults", {})))

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Do nothing: only the schedule moves."""


def simulate(optimizer: Optimizer, scheduler: Any, steps: int) -> Iterator[list[float]]:
    """Yield the learning rates of every step, on a copy of the schedule.

    The copy gets a stand-in for the optimizer: those of DeepSpeed cannot be copied, and others are
    large. A schedule that needs more of its optimizer than groups gets a copy of it, which shares
    only the tensors.
    """
    signs = (1.0, -1.0) if takes_metrics(scheduler) else (1.0,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns because no optimizer step comes first
        for sign in signs:
            copied = _copied(optimizer, scheduler)
            for step in range(steps):
                try:
                    _advance(copied, sign * step)
                    rates = rates_of(copied.optimizer)
                # a schedule of fixed length has ended; a user's function may raise anything then
                except Exception:
                    break
                yield rates


def _copied(optimizer: Optimizer, scheduler: Any) -> Any:
    copied = _with_stand_in(scheduler)
    if copied is None:
        copied = copy.deepcopy(scheduler, _shared(optimizer))
    if takes_metrics(copied):  # let every step change the rates, however little
        for name in ("patience", "cooldown", "warmup", "eps"):
            if hasattr(copied, name):
                setattr(copied, name, 0)
    return copied


def _with_stand_in(scheduler: Any) -> Any:
    """Return a copy of the schedule with a stand-in; None if its first step fails with one."""
    copies: list[Any] = []
    try:
        for _ in range(2):  # one to try the first step, one to return
            memo: dict[int, Any] = {}
            for part in schedules_in(scheduler):
                memo.setdefault(id(part.optimizer), _StandIn(part.optimizer))
            copies.append(copy.deepcopy(scheduler, memo))
        _advance(copies[0])
    except Exception:  # a user's class may raise anything
        return None
    return copies[1]


def _shared(optimizer: Optimizer) -> dict[int, Any]:
    """Return a memo of deepcopy with which a copy shares the tensors and has no state."""
    memo: dict[int, Any] = {id(optimizer.state): {}}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            memo[id(parameter)] = parameter
    return memo


def _advance(scheduler: Any, metric: float = 0.0) -> None:
    if takes_metrics(scheduler):
        scheduler.step(metric)
    elif _counts_samples(scheduler):
        scheduler.step(1)
    else:
        scheduler.step()


def _counts_samples(scheduler: Any) -> bool:
    """Return whether `step` takes the number of steps or samples (Megatron, NeMo)."""
    return _requires(scheduler, "increment")


def takes_metrics(scheduler: Any) -> bool:
    """Return whether `step` takes a loss (ReduceLROnPlateau, GreedyLR of Transformers)."""
    return _requires(scheduler, "metrics")


def _requires(scheduler: Any, name: str) -> bool:
    step = getattr(scheduler, "step", None)
    parameter = None if step is None else inspect.signature(step).parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def schedule_length(scheduler: Any) -> int:
    """Return a number of steps that covers every length in the schedule and its parts."""
    known: list[int] = []
    for part in schedules_in(scheduler):
        for name in LENGTHS:
            value = getattr(part, name, None)
            if isinstance(value, int):
                known.append(value)
        for name in ("milestones", SEQUENTIAL_MILESTONES):
            milestones = list(getattr(part, name, None) or [])
            if milestones:
                known.append(int(max(milestones)))
    length = max(STEPS, 2 * max(known, default=0), sum(known))
    if length > MOST_STEPS:
        raise InputError(
            f"scheduler: it has {length} steps, too many to simulate; pass the number of steps to"
            " check: plan.check(..., steps=...)",
            argument="steps",
        )
    return length


def schedules_in(scheduler: Any) -> list[Any]:
    """Return the scheduler and all schedulers inside it."""
    parts = [scheduler]
    for inner in getattr(scheduler, CHILD_SCHEDULERS, []):
        parts += schedules_in(inner)
    return parts
