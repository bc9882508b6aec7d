"""What a model is trained on: batches by number, the same for the same step and seed, and batches
that are held out.

Any object with these names is a task. A batch is a tensor, keyword arguments in a dict, or a pair
of inputs and targets.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

Batch: TypeAlias = Any  # Tensor | dict[str, Tensor] | tuple[inputs, Tensor]
Loss: TypeAlias = Callable[[Any, Any], Tensor]
FORMATS = ("pairs", "huggingface")
# held-out batches, if nothing else is asked for: they tell learning rates apart and cost little
EVALUATIONS = 8


@runtime_checkable
class Task(Protocol):
    @property
    def name(self) -> str:
        """Identifies data and preprocessing: two tasks of one name give the same batches."""
        ...

    @property
    def loss(self) -> Loss | None:
        """loss(output, target), or None for the usual one: cross entropy for classes, the model's
        own for a dict."""
        ...

    def batch(self, step: int, seed: int) -> Batch:
        """The same for the same arguments, whatever was asked for before."""
        ...

    def evaluation(self) -> Sequence[Batch]:
        """Held out from every batch; may be empty."""
        ...


@runtime_checkable
class StackedTask(Task, Protocol):
    """A task that makes the batches of many members in one go."""

    def stacked(
        self, step: int, seeds: Sequence[int], device: torch.device | str | None = None
    ) -> Batch:
        """`torch.stack` of `batch(step, seed)` for every seed, leaf by leaf, on the device."""
        ...
