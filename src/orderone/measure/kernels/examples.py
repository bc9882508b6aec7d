"""Batches as examples: a model as a function of one example.

A tangent kernel compares examples, so a model is called with one example at a time, or with
`torch.vmap` over examples. Both give the same function, whatever axis of its tensors the model uses
for examples inside.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.core.inputs import UserInput
from orderone.observe.batches import on_device
from orderone.observe.trace import call_with
from orderone.torch_compat import tree_flatten, tree_leaves, tree_map, tree_unflatten

Inputs: TypeAlias = Annotated[
    Tensor | np.ndarray | Mapping[str, object] | Sequence[object], UserInput
]
Select: TypeAlias = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Examples:
    """A batch, cut into tensors that have one row per example, and everything else.

    `tensors` are the former, (examples, ...). `structure` puts both together again.
    """

    tensors: tuple[Tensor, ...]
    structure: Callable[[Sequence[Tensor]], object]

    def __len__(self) -> int:
        return self.tensors[0].shape[0]

    def rows(self, which: slice) -> tuple[Tensor, ...]:
        """Return the tensors of some examples."""
        return tuple(tensor[which] for tensor in self.tensors)

    def call(self, rows: Sequence[Tensor]) -> tuple[tuple[object, ...], dict[str, object]]:
        """Return the arguments of the model for a batch with these rows."""
        inputs = self.structure(rows)
        assert isinstance(inputs, (Tensor, Mapping, tuple, list))
        return call_with(inputs)


def _tensor(array: np.ndarray, argument: str) -> Tensor:
    try:
        return torch.as_tensor(array)
    except TypeError as error:
        raise InputError(
            f"{argument}: expected an array of numbers, got one of {array.dtype}",
            "wrong-type",
            argument=argument,
        ) from error


def read_examples(inputs: object, model: nn.Module, argument: str) -> Examples:
    """Cut a batch into examples.

    The first tensor tells the number of examples. Other tensors with as many rows are cut in the
    same way; the rest (a mask for all examples, a flag) is the same for every example.
    """
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)
    elif isinstance(inputs, list):
        inputs = tuple(inputs)
    inputs = tree_map(lambda x: _tensor(x, argument) if isinstance(x, np.ndarray) else x, inputs)
    leaves, form = tree_flatten(on_device(inputs, model))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not isinstance(inputs, (Tensor, Mapping, tuple)) or not tensors or tensors[0].dim() == 0:
        raise InputError(
            f"{argument}: expected a batch of examples: a tensor with one row per example, a tuple"
            " of positional arguments, or a dict of keyword arguments; got"
            f" {type(inputs).__name__}",
            argument=argument,
        )
    examples = tensors[0].shape[0]
    if examples == 0:
        raise InputError(f"{argument}: expected at least one example, got none", argument=argument)
    places = []
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == examples:
            places.append(place)

    def structure(rows: Sequence[Tensor]) -> object:
        filled = list(leaves)
        for place, row in zip(places, rows, strict=True):
            filled[place] = row
        return tree_unflatten(filled, form)

    return Examples(tuple(leaves[place].detach() for place in places), structure)


def read_output(output: object, select: Select | None) -> Tensor:
    """Return the outputs of a batch, (examples, ...): of `select`, the logits, or the first ones.

    The first floating tensor with an axis for examples counts; a loss has none.
    """
    if select is not None:
        selected = select(output)
        if not isinstance(selected, Tensor) or selected.dim() == 0:
            raise InputError(
                "select: expected a function from the model's output to a tensor with one row per"
                f" example, got a result of type {type(selected).__name__}",
                argument="select",
            )
        return selected
    if not isinstance(output, Tensor):
        logits = getattr(output, "logits", None)
        if logits is None and isinstance(output, Mapping):
            logits = output.get("logits")
        if isinstance(logits, Tensor):
            output = logits
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.is_floating_point():
            return leaf
    raise InputError(
        "model: expected an output with one row of numbers per example, got"
        f" {type(output).__name__}; pass select=function, which returns the tensor to use",
        argument="model",
    )
