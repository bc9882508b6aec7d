"""Batches in the forms that users pass, the loss of a batch, and repeatable forward passes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from itertools import islice
from typing import TypeAlias, TypeGuard, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from orderone.core.errors import InputError
from orderone.observe.derivatives import without_gradients
from orderone.observe.trace import call_with
from orderone.seeding import seeded
from orderone.torch_compat import (
    buffer_registry,
    has_gradient,
    parameter_registry,
    tree_leaves,
    tree_map,
)

Batch: TypeAlias = Tensor | Mapping[str, object] | tuple[object, ...]
ModelInputs: TypeAlias = Tensor | Mapping[str, object] | Sequence[object]
Loss: TypeAlias = Callable[..., Tensor]  # arguments: output and target, or output and batch
SEED = 0  # for repeatable passes
NAMES_OF_TARGETS = ("targets", "target", "labels", "label")  # arguments of forward passes
Tree = TypeVar("Tree")


# --- batches --------------------------------------------------------------------------------------


def is_batch(value: object) -> TypeGuard[Batch]:
    """Return whether `value` is one batch: a tensor, keyword arguments, or inputs and targets."""
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


def as_batch(value: object) -> object:
    """Return a batch of plain tuples, dicts and tensors.

    Loaders make lists, Hugging Face makes dicts of its own classes, and some data is in arrays of
    numpy.
    """
    if isinstance(value, list):
        value = tuple(value)
    elif isinstance(value, Mapping):
        value = dict(value)
    return tree_map(lambda x: torch.as_tensor(x) if isinstance(x, np.ndarray) else x, value)


def read_batches(batches: object, steps: int) -> list[Batch]:
    """Return `steps` batches: one for all steps, or one for each.

    An iterator may end early; then there are fewer batches than steps.
    """
    if callable(batches) and not isinstance(batches, Iterable):
        batches = batches()
    if is_batch(batches):
        return [batches] * steps
    if isinstance(batches, (str, bytes)) or not isinstance(batches, Iterable):
        raise InputError(
            "batches: expected one batch (a tensor, a dict of keyword arguments, a pair of inputs"
            f" and targets) or a sequence of them, got {type(batches).__name__}",
            argument="batches",
        )
    if isinstance(batches, Sequence) and len(batches) < steps:
        raise InputError(
            f"batches: expected one for each of {steps} steps, got {len(batches)}; pass more"
            " batches, fewer steps, or a single batch (not in a list) for all steps",
            argument="batches",
        )
    checked: list[Batch] = []
    for batch in list(islice(iter(batches), steps)):
        if isinstance(batch, list):
            batch = tuple(batch)
        if not is_batch(batch):
            raise InputError(
                "batches: expected each to be a tensor, a dict of keyword arguments or a pair of"
                f" inputs and targets, got {_describe(batch)}",
                argument="batches",
            )
        checked.append(batch)
    if not checked:
        raise InputError(
            "batches: expected at least one, got an empty iterable", argument="batches"
        )
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
    """Return the inputs of the model: the first entry of a pair, otherwise the batch itself."""
    if isinstance(batch, tuple) and len(batch) == 2:
        return batch[0]
    return cast(ModelInputs, batch)


def on_device(batch: Tree, model: nn.Module) -> Tree:
    """Move all tensors of a batch to the device of the model."""
    device = next(model.parameters()).device
    return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, batch)


# --- loss -----------------------------------------------------------------------------------------


def loss_of(model: Callable[..., object], batch: object, loss: Loss | None) -> Tensor:
    """Run the model and return the loss: from `loss`, the model's output, or `usual_loss`."""
    args, kwargs = call_with(call_inputs(batch))
    output = model(*args, **kwargs)
    if isinstance(batch, tuple) and len(batch) == 2:
        if loss is None:
            return _usual_loss_of_model(model, output, batch)
        value = loss(output, batch[1])
    elif loss is None:
        return _loss_of_model(output, lambda: model(*args, **kwargs))
    else:
        value = loss(output, batch)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise InputError(
            f"loss: expected a function that returns a scalar tensor, got {_describe(value)}",
            argument="loss",
        )
    return value.squeeze()


def _loss_of_model(output: object, run_again: Callable[[], object]) -> Tensor:
    """Return the loss in a model's output: by name, or the first scalar with a gradient.

    Without gradients, as in an evaluation, the model is run again with them if its output has
    several scalars: one may be an accuracy.
    """
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, Mapping):
        loss = output.get("loss")
    if loss is None:
        scalars = _scalars(output)
        place = _place_of_loss(scalars)
        if place is None and not torch.is_grad_enabled():
            place = 0
            if len(scalars) > 1:
                with torch.enable_grad():
                    place = _place_of_loss(_scalars(run_again()))
        if place is not None and scalars:
            loss = scalars[place]
    if loss is None:
        message = (
            f"loss: the model returns no loss (it returns {_describe(output)}); pass batches of"
            " (inputs, targets), or loss=function(output, batch); a Hugging Face model needs"
            " labels in the batch"
        )
        raise InputError(message, "needs-loss", argument="loss")
    return loss.squeeze()


def _scalars(output: object) -> list[Tensor]:
    scalars: list[Tensor] = []
    for x in tree_leaves(output):
        if isinstance(x, Tensor) and x.numel() == 1 and x.is_floating_point():
            scalars.append(x)
    return scalars


def _place_of_loss(scalars: Sequence[Tensor]) -> int | None:
    """Return the place of the first scalar with a gradient; None if there is none."""
    for place, x in enumerate(scalars):
        if has_gradient(x):
            return place
    return None


def _usual_loss_of_model(
    model: Callable[..., object], output: object, batch: tuple[object, object]
) -> Tensor:
    """Return the usual loss; if the model wants to compute its own one, say how to call it."""
    if isinstance(getattr(output, "logits", output), Tensor):
        return usual_loss(output, cast(Tensor, batch[1]))
    named = _names_of_inputs_and_target(model)
    if named is None:
        return usual_loss(output, cast(Tensor, batch[1]))
    first, second = named
    message = (
        f"loss: the model returns {_describe(output)}, which has no usual loss; its forward takes"
        f" targets and may compute the loss itself: pass batches of {{{first!r}: inputs,"
        f" {second!r}: targets}}. Or pass loss=function(output, target)"
    )
    raise InputError(message, "needs-loss", argument="loss")


def _names_of_inputs_and_target(model: Callable[..., object]) -> tuple[str, str] | None:
    """Return the first argument of a forward pass and the one for targets, if it has both."""
    try:
        names = list(signature(getattr(model, "forward", model)).parameters)
    except (TypeError, ValueError):  # a callable without a signature
        return None
    targets = [name for name in names[1:] if name in NAMES_OF_TARGETS]
    return (names[0], targets[0]) if targets else None


def usual_loss(output: object, target: Tensor) -> Tensor:
    """Return the cross entropy for classes, the mean squared error for numbers."""
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        message = (
            f"loss: the model returns {_describe(output)}, which has no usual loss; pass"
            " loss=function(output, target)"
        )
        raise InputError(message, "needs-loss", argument="loss")
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
    """Draw the same random numbers in every pass, in the present mode of the model.

    Buffers and random state are restored afterwards.
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
        for module, module_buffers in buffers:  # some were written to, some replaced
            buffer_registry(module).update(module_buffers)
        for buffer, content in contents:
            # through .data, so that an autograd graph that holds the buffer stays valid
            buffer.data.copy_(content)


def draws_randomly(model: nn.Module, batch: Batch) -> bool:
    """Return whether a forward pass draws random numbers, as dropout does."""
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    args, kwargs = call_with(call_inputs(batch))
    with repeatable(model), without_gradients(model):
        before = _random_state(devices)
        model(*args, **kwargs)
        after = _random_state(devices)
    return any(not torch.equal(x, y) for x, y in zip(before, after, strict=True))


def _random_state(devices: list[int]) -> list[Tensor]:
    on_gpus = [torch.cuda.get_rng_state(device) for device in devices]
    return [torch.random.get_rng_state(), *on_gpus]
