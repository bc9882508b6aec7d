"""Training data: a task, a function of (step, seed), or a single batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.observe.batches import Loss, ModelInputs, call_inputs, is_batch
from orderone.torch_compat import tree_leaves, tree_map
from orderone.training.fingerprint import identity

Batch: TypeAlias = object  # tensors in any nesting: inputs, keyword arguments, inputs and targets


@dataclass(frozen=True)
class Source:
    """Source of batches: `batch(step, seed)` returns the same batch for the same arguments.

    `stacked`, if there is one, returns the batches of many seeds at once.
    """

    name: object  # identifies the data in a fingerprint
    batch: Callable[[int, int], Batch]
    held_out: Callable[[], Sequence[Batch]] = tuple
    loss: Loss | None = None
    stacked: Callable[..., Batch] | None = field(default=None, compare=False)
    named: bool = True  # False: `name` is made from the code of a function or class

    def inputs(self) -> ModelInputs:
        """Return example inputs of the model."""
        return call_inputs(self.at(0, 0))

    def at(self, step: int, seed: int) -> Batch:
        """Return the batch of a step; raise an InputError if it is not a batch."""
        batch = self.batch(step, seed)
        if isinstance(batch, Mapping) or any(isinstance(x, Tensor) for x in tree_leaves(batch)):
            return batch
        raise InputError(
            "data: expected a batch (a tensor, a dict of keyword arguments, or a pair of inputs and"
            f" targets) for step {step}, got {type(batch).__name__}; check that the function"
            " returns it",
            "batch-expected",
            argument="data",
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
    kind = "nothing" if data is None else type(data).__name__
    raise InputError(
        "data: expected a task (orderone.data), a function of (step, seed) that returns a batch, or"
        f" one batch for all steps; got {kind}",
        "training-data-expected",
        argument="data",
    )


@dataclass(frozen=True)
class _Always:
    """Source of the same batch at every step; a class, so that it can be pickled."""

    batch: Batch

    def __call__(self, step: int, seed: int) -> Batch:
        return self.batch


def moved(batch: Batch, device: torch.device, precision: str) -> Batch:
    """Move a batch to the device; cast floats to the precision of the model."""

    def move(x: object) -> object:
        if not isinstance(x, Tensor):
            return x
        if precision == "float64" and x.is_floating_point():
            return x.to(device, torch.float64)
        return x.to(device)

    if isinstance(batch, Mapping):
        batch = dict(batch)
    return tree_map(move, batch)
