"""What to train on, in the forms that people have it: batches, and the loss of one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.observe.reference_outputs import repeatable
from orderone.observe.trace import call_with
from orderone.torch_compat import tree_leaves, tree_map

Loss = Callable[[Any, Any], Tensor]


def is_batch(given: Any) -> bool:
    """One batch: a tensor, keyword arguments, or a tuple of inputs and targets."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Tensor):
        several = isinstance(given[0], (tuple, list)) and all(
            isinstance(x, Tensor) for x in given[0]
        )
        return several or isinstance(given[0], (Tensor, Mapping))
    return isinstance(given, (Tensor, Mapping)) or (
        isinstance(given, tuple) and [*map(type, given)] == [Tensor]
    )


def read_batches(given: Any, steps: int) -> list[Any]:
    """`steps` batches: one for all steps, or one for each. A stream may end early; what it gave is
    used."""
    if callable(given) and not isinstance(given, Iterable):
        given = given()
    if is_batch(given):
        return [given] * steps
    if given is None or isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ValueError(
            "batches: expected one batch (a tensor, a dict of keyword arguments, a pair of inputs"
            f" and targets) or a sequence of them, got {type(given).__name__}"
        )
    if isinstance(given, Sequence) and len(given) < steps:
        raise ValueError(
            f"batches: expected one for each of {steps} steps, got {len(given)}; give more, fewer"
            " steps, or a single batch (not in a list) to train on at every step"
        )
    found = [
        tuple(batch) if isinstance(batch, list) else batch for batch in islice(iter(given), steps)
    ]
    if not found:
        raise ValueError("batches: expected at least one, and there was none")
    for batch in found:
        if not is_batch(batch):
            raise ValueError(
                "batches: expected each to be a tensor, a dict of keyword arguments or a pair of"
                f" inputs and targets, got {_describe(batch)}"
            )
    return _same_again(found)


def _same_again(found: list[Any]) -> list[Any]:
    """A list made of the same tensors again is the same batch: lists of a loader are new at every
    step."""
    first = tree_leaves(found[0])
    same = all(
        len(leaves := tree_leaves(batch)) == len(first)
        and all(x is y for x, y in zip(leaves, first, strict=True))
        for batch in found
    )
    return [found[0]] * len(found) if same else found


def call_inputs(batch: Any) -> Any:
    """What the model is called with: of a pair, the first."""
    if isinstance(batch, tuple) and len(batch) == 2:
        return batch[0]
    return batch


def on_device(batch: Any, model: nn.Module) -> Any:
    device = next(model.parameters()).device
    return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch)


def loss_of(model: Callable[..., Any], batch: Any, loss: Loss | None) -> Tensor:
    """A pass of the model, and the loss: the given one, the model's own, or the usual one for a
    pair."""
    args, kwargs = call_with(call_inputs(batch))
    output = model(*args, **kwargs)
    paired = isinstance(batch, tuple) and len(batch) == 2
    if loss is not None:
        return _checked(loss(output, batch[1] if paired else batch))
    if paired:
        return usual_loss(output, batch[1])
    return _own_loss(output)


def _checked(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(
            f"loss: expected a function that returns a scalar tensor, got {_describe(value)}"
        )
    return value.squeeze()


def _own_loss(output: Any) -> Tensor:
    own = getattr(output, "loss", None)
    if own is None and isinstance(output, Mapping):
        own = output.get("loss")
    if own is None:
        scalars = [
            x
            for x in tree_leaves(output)
            if isinstance(x, Tensor) and x.numel() == 1 and x.requires_grad
        ]
        own = scalars[0] if scalars else None
    if own is None:
        raise ValueError(
            f"loss: the model gives none ({_describe(output)}); give loss=function(output, batch),"
            " batches as pairs of inputs and targets, or for Hugging Face labels in the batch"
        )
    return own.squeeze()


def usual_loss(output: Any, target: Tensor) -> Tensor:
    """Cross entropy for classes, mean squares for numbers."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        raise ValueError(
            "loss: give one for this output: loss=function(output, target); got"
            f" {_describe(output)}"
        )
    if target.is_floating_point():
        return functional.mse_loss(logits, target.to(logits.dtype).view_as(logits))
    if logits.dim() == target.dim() + 1 and logits.shape[:-1] == target.shape:
        return functional.cross_entropy(logits.flatten(0, -2), target.flatten())
    return functional.cross_entropy(logits, target)


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return type(value).__name__


def draws_randomly(model: nn.Module, batch: Any) -> bool:
    """Whether a pass draws random numbers, as dropout does: the state of the generators tells."""
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    args, kwargs = call_with(call_inputs(batch))
    with repeatable(model), torch.no_grad():
        before = _random_state(devices)
        model(*args, **kwargs)
        after = _random_state(devices)
    return any(not torch.equal(one, two) for one, two in zip(before, after, strict=True))


def _random_state(devices: list[int]) -> list[Tensor]:
    return [torch.random.get_rng_state(), *(torch.cuda.get_rng_state(i) for i in devices)]
