"""Batches in the forms that users have them, the loss of one, and repeatable passes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TypeAlias, TypeGuard, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.observe.trace import call_with
from orderone.seeding import seeded
from orderone.torch_compat import buffer_registry, parameter_registry, tree_leaves, tree_map

Batch: TypeAlias = Tensor | Mapping[str, object] | tuple[object, ...]
ModelInputs: TypeAlias = Tensor | Mapping[str, object] | Sequence[object]
Loss: TypeAlias = Callable[..., Tensor]  # of output and target, or of output and batch
SEED = 0  # of repeatable passes
Tree = TypeVar("Tree")


# --- batches --------------------------------------------------------------------------------------


def is_batch(value: object) -> TypeGuard[Batch]:
    """Return whether this is one batch: a tensor, keyword arguments, or inputs and targets."""
    if isinstance(value, (Tensor, Mapping)):
        return True
    if not isinstance(value, tuple):
        return False
    if len(value) == 2 and isinstance(value[1], Tensor):
        inputs = value[0]
        if isinstance(inputs, (tuple, list)):
            return all(isinstance(x, Tensor) for x in inputs)
        return isinstance(inputs, (Tensor, Mapping))
    return len(value) == 1 and type(value[0]) is Tensor


def read_batches(batches: object, steps: int) -> list[Batch]:
    """Return `steps` batches: one for all steps, or one for each.

    A stream may end early; the batches that it gave are used.
    """
    if callable(batches) and not isinstance(batches, Iterable):
        batches = batches()
    if is_batch(batches):
        return [batches] * steps
    if isinstance(batches, (str, bytes)) or not isinstance(batches, Iterable):
        raise ValueError(
            "batches: expected one batch (a tensor, a dict of keyword arguments, a pair of inputs"
            f" and targets) or a sequence of them, got {type(batches).__name__}"
        )
    if isinstance(batches, Sequence) and len(batches) < steps:
        raise ValueError(
            f"batches: expected one for each of {steps} steps, got {len(batches)}; give more, fewer"
            " steps, or a single batch (not in a list) to train on at every step"
        )
    checked: list[Batch] = []
    for batch in list(islice(iter(batches), steps)):
        if isinstance(batch, list):
            batch = tuple(batch)
        if not is_batch(batch):
            raise ValueError(
                "batches: expected each to be a tensor, a dict of keyword arguments or a pair of"
                f" inputs and targets, got {_describe(batch)}"
            )
        checked.append(batch)
    if not checked:
        raise ValueError("batches: expected at least one, and there was none")
    if all(_same_tensors(batch, checked[0]) for batch in checked):
        return [checked[0]] * len(checked)  # a loader makes new lists of the same tensors
    return checked


def _same_tensors(batch: Batch, first: Batch) -> bool:
    leaves = tree_leaves(batch)
    first_leaves = tree_leaves(first)
    if len(leaves) != len(first_leaves):
        return False
    return all(x is y for x, y in zip(leaves, first_leaves, strict=True))


def call_inputs(batch: object) -> ModelInputs:
    """Return what the model is called with: of a pair, the first."""
    if isinstance(batch, tuple) and len(batch) == 2:
        return batch[0]
    return cast(ModelInputs, batch)


def on_device(batch: Tree, model: nn.Module) -> Tree:
    """Move all tensors of a batch to the device of the model."""
    device = next(model.parameters()).device
    return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch)


# --- loss -----------------------------------------------------------------------------------------


def loss_of(model: Callable[..., object], batch: object, loss: Loss | None) -> Tensor:
    """Run a pass and return the loss: `loss`, the model's own, or the usual one of a pair."""
    args, kwargs = call_with(call_inputs(batch))
    output = model(*args, **kwargs)
    if isinstance(batch, tuple) and len(batch) == 2:
        if loss is None:
            return usual_loss(output, batch[1])
        value = loss(output, batch[1])
    elif loss is None:
        return _loss_of_model(output)
    else:
        value = loss(output, batch)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ValueError(
            f"loss: expected a function that returns a scalar tensor, got {_describe(value)}"
        )
    return value.squeeze()


def _loss_of_model(output: object) -> Tensor:
    """Return the loss in a model's output: by name, or the first scalar with a gradient."""
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, Mapping):
        loss = output.get("loss")
    if loss is None:
        for x in tree_leaves(output):
            if isinstance(x, Tensor) and x.numel() == 1 and x.requires_grad:
                loss = x
                break
    if loss is None:
        raise ValueError(
            f"loss: the model gives none ({_describe(output)}); give loss=function(output, batch),"
            " batches as pairs of inputs and targets, or for Hugging Face labels in the batch"
        )
    return loss.squeeze()


def usual_loss(output: object, target: Tensor) -> Tensor:
    """Return the cross entropy for classes, the mean squared error for numbers."""
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


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return type(value).__name__


# --- repeatable passes ----------------------------------------------------------------------------


@contextmanager
def repeatable(model: nn.Module) -> Iterator[None]:
    """Draw the same random numbers every time, in the mode the model is in.

    Afterwards buffers and random state are as they were.
    """
    devices = set()
    buffers: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
    contents: list[tuple[Tensor, Tensor]] = []
    for module in model.modules():
        for parameter in parameter_registry(module).values():
            if parameter is not None and parameter.is_cuda:
                devices.add(parameter.get_device())
        if buffer_registry(module):
            buffers.append((module, dict(buffer_registry(module))))
        for buffer in buffer_registry(module).values():
            if buffer is not None:
                contents.append((buffer, buffer.clone()))
    try:
        with seeded(SEED, sorted(devices)):
            yield
    finally:
        for module, module_buffers in buffers:  # some are written into, some replaced
            buffer_registry(module).update(module_buffers)
        for buffer, content in contents:
            # without a new version: a graph may hold it, and finds it as it was
            buffer.data.copy_(content)


def draws_randomly(model: nn.Module, batch: Batch) -> bool:
    """Return whether a pass draws random numbers, as dropout does."""
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    args, kwargs = call_with(call_inputs(batch))
    with repeatable(model), torch.no_grad():
        before = _random_state(devices)
        model(*args, **kwargs)
        after = _random_state(devices)
    return any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))


def _random_state(devices: list[int]) -> list[Tensor]:
    on_gpus = [torch.cuda.get_rng_state(device) for device in devices]
    return [torch.random.get_rng_state(), *on_gpus]
