"""Types of the arguments of a training: data, loss, schedule, device, files."""

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Annotated, Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from orderone.core.inputs import UserInput
from orderone.observe.batches import Loss
from orderone.planning import Plan
from orderone.training.schedule import Factor
from orderone.training.sinks import Sink
from orderone.training.source import Batch, Source


class Task(Protocol):
    """Data with a batch for every step and seed; `orderone.data` has some.

    A task may also have `evaluation()` (held-out batches), `loss`, `name` and `stacked` (the
    batches of many seeds).
    """

    def batch(self, step: int, seed: int, /) -> Batch: ...


Data: TypeAlias = Annotated[
    Task
    | Source
    | Callable[..., object]
    | Iterable[object]
    | Dataset[Any]
    | Tensor
    | Mapping[str, object]
    | tuple[object, ...]
    | None,
    UserInput,
]
CollateFunction: TypeAlias = Annotated[Callable[[Any], object] | None, UserInput]
LossFunction: TypeAlias = Annotated[Loss | None, UserInput]
ScheduleInput: TypeAlias = Annotated[str | Factor, UserInput]
Device: TypeAlias = Annotated[str | torch.device | None, UserInput]
FilePath: TypeAlias = Annotated[str | PathLike[str] | None, UserInput]
Model: TypeAlias = Annotated[Plan | nn.Module | tuple[Plan | nn.Module, Optimizer], UserInput]
UserOptimizer: TypeAlias = Annotated[Optimizer | None, UserInput]
OneSink: TypeAlias = str | PathLike[str] | Sink
Sinks: TypeAlias = Annotated[OneSink | list[OneSink] | tuple[OneSink, ...] | None, UserInput]
