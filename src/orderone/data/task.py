"""The protocol of a task: training batches by step and seed, and held-out batches.

The same step and seed give the same batch. Any object with these names is a task. A batch is a
tensor, keyword arguments in a dict, or a pair of inputs and targets.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

Batch: TypeAlias = Any  # Tensor | dict[str, Tensor] | tuple[inputs, Tensor]
Loss: TypeAlias = Callable[[Any, Any], Tensor]
FORMATS = ("pairs", "huggingface")
# default number of held-out batches: enough to tell learning rates apart, and cheap
EVALUATIONS = 8


@runtime_checkable
class Task(Protocol):
    """Data to train a model on."""

    @property
    def name(self) -> str:
        """Identify data and preprocessing: two tasks with the same name have the same batches."""
        ...

    @property
    def loss(self) -> Loss | None:
        """Return loss(output, target), or None for the default.

        The default is cross entropy for classes, and the loss that the model returns for a dict.
        """
        ...

    def batch(self, step: int, seed: int) -> Batch:
        """Return a batch that depends on the arguments alone."""
        ...

    def evaluation(self) -> Sequence[Batch]:
        """Return held-out batches, which no training batch overlaps; may be empty."""
        ...


@runtime_checkable
class StackedTask(Task, Protocol):
    """A task that makes the batches of many members in one call."""

    def stacked(
        self, step: int, seeds: Sequence[int], device: torch.device | str | None = None
    ) -> Batch:
        """Return `torch.stack` of `batch(step, seed)` for every seed, leaf by leaf."""
        ...
