"""What to train on, in the forms that people have it: a task, a function of (step, seed), or a
single batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from orderone.observe.batches import Loss, call_inputs, is_batch
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

    name: Any  # identifies the data in a fingerprint
    batch: Callable[[int, int], Any]
    held_out: Callable[[], Sequence[Any]] = tuple
    loss: Loss | None = None
    stacked: Callable[..., Any] | None = field(default=None, compare=False)
    named: bool = True  # False: told by the code of a function or class

    def inputs(self) -> Any:
        """An example of what the model is called with."""
        return call_inputs(self.at(0, 0))

    def at(self, step: int, seed: int) -> Any:
        """The batch, if it is one."""
        found = self.batch(step, seed)
        if isinstance(found, Mapping) or any(isinstance(x, Tensor) for x in tree_leaves(found)):
            return found
        raise ValueError(
            "data: expected a batch (a tensor, a dict of keyword arguments, a pair of inputs and"
            f" targets) for step {step}, got {type(found).__name__}; does the function return it?"
        )


def read_source(data: Any) -> Source:
    if isinstance(data, Source):
        return data
    if is_batch(data):
        return Source(identity(data), _Always(data))
    if callable(getattr(data, "batch", None)):
        held_out: Any = getattr(data, "evaluation", tuple)
        name = getattr(data, "name", None)
        own = getattr(data, "loss", None), getattr(data, "stacked", None)
        return Source(name or identity(data), data.batch, held_out, *own, named=bool(name))
    if callable(data) and not isinstance(data, (type, torch.nn.Module)):
        return Source(identity(data), data, named=False)
    raise ValueError(WANTED.format("nothing" if data is None else type(data).__name__))


@dataclass(frozen=True)
class _Always:
    """The same batch at every step. A class, so that it travels to other processes."""

    given: Any

    def __call__(self, step: int, seed: int) -> Any:
        return self.given


def moved(batch: Any, device: torch.device, precision: str) -> Any:
    """On the device, real numbers in the precision of the model."""

    def move(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if precision == "float64" and x.is_floating_point():
            return x.to(device, torch.float64)
        return x.to(device)

    return tree_map(move, dict(batch) if isinstance(batch, Mapping) else batch)
