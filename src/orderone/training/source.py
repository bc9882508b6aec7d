"""What to train on, in the forms that people have it: a task, a function of (step, seed), or a
single batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from orderone.observe.batches import Loss, ModelInputs, call_inputs, is_batch
from orderone.torch_compat import tree_leaves, tree_map
from orderone.training.fingerprint import identity

Batch: TypeAlias = object  # tensors in any nesting: inputs, keyword arguments, inputs and targets
WANTED = (
    "data: expected a task (orderone.data), a function of (step, seed) that returns a batch, or one"
    " batch for all steps; got {}"
)


@dataclass(frozen=True)
class Source:
    """`batch(step, seed)` is the same for the same arguments; `stacked`, if there is one, gives
    those of many seeds."""

    name: object  # identifies the data in a fingerprint
    batch: Callable[[int, int], Batch]
    held_out: Callable[[], Sequence[Batch]] = tuple
    loss: Loss | None = None
    stacked: Callable[..., Batch] | None = field(default=None, compare=False)
    named: bool = True  # False: told by the code of a function or class

    def inputs(self) -> ModelInputs:
        """An example of what the model is called with."""
        return call_inputs(self.at(0, 0))

    def at(self, step: int, seed: int) -> Batch:
        """Return the batch, if it is one."""
        batch = self.batch(step, seed)
        if isinstance(batch, Mapping) or any(isinstance(x, Tensor) for x in tree_leaves(batch)):
            return batch
        raise ValueError(
            "data: expected a batch (a tensor, a dict of keyword arguments, a pair of inputs and"
            f" targets) for step {step}, got {type(batch).__name__}; does the function return it?"
        )


def read_source(data: object) -> Source:
    if isinstance(data, Source):
        return data
    if is_batch(data):
        return Source(identity(data), _Always(data))
    batch = getattr(data, "batch", None)
    if callable(batch):
        name = getattr(data, "name", None)
        return Source(
            name=name or identity(data),
            batch=batch,
            held_out=getattr(data, "evaluation", tuple),
            loss=getattr(data, "loss", None),
            stacked=getattr(data, "stacked", None),
            named=bool(name),
        )
    if callable(data) and not isinstance(data, (type, torch.nn.Module)):
        return Source(identity(data), data, named=False)
    if data is None:
        raise ValueError(WANTED.format("nothing"))
    raise ValueError(WANTED.format(type(data).__name__))


@dataclass(frozen=True)
class _Always:
    """The same batch at every step. A class, so that it travels to other processes."""

    batch: Batch

    def __call__(self, step: int, seed: int) -> Batch:
        return self.batch


def moved(batch: Batch, device: torch.device, precision: str) -> Batch:
    """Move a batch to the device, real numbers in the precision of the model."""

    def move(x: object) -> object:
        if not isinstance(x, Tensor):
            return x
        if precision == "float64" and x.is_floating_point():
            return x.to(device, torch.float64)
        return x.to(device)

    if isinstance(batch, Mapping):
        batch = dict(batch)
    return tree_map(move, batch)
