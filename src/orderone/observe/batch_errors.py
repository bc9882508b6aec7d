"""Errors about batches that a model does not accept.

torch raises "mat1 and mat2 shapes cannot be multiplied" for a batch of the wrong shape. The
errors made here add which argument the batch came from and what it contains.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.observe.inventory import unwrap

# Exactly these classes: subclasses, such as torch.OutOfMemoryError, have other causes.
MISFITS = (RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError)
WITHOUT_TARGETS = ("inputs", "batch")  # arguments whose batches no loss reads
MOST_ENTRIES = 12  # entries of a batch in a message


@contextmanager
def naming_batch(argument: str, batch: object, model: Callable[..., object]) -> Iterator[None]:
    """Raise an InputError that names `argument` if a pass inside the context raises an error."""
    try:
        yield
    except MISFITS as error:
        if type(error) not in MISFITS:
            raise
        raise batch_error(argument, batch, model, error) from error


def batch_error(
    argument: str, batch: object, model: Callable[..., object], error: Exception
) -> InputError:
    """Return the error to raise when `model` or the loss raised `error` for `batch`."""
    text = str(error).strip().splitlines()
    if text:
        raised = f"{type(error).__name__}: {text[0]}"
    else:
        raised = type(error).__name__
    raised_by = "the model or the loss"
    remedy = "Pass batches that the model and the loss accept"
    if argument in WITHOUT_TARGETS:
        raised_by = "the model"
        remedy = "Pass inputs of the model alone, without targets"
    message = (
        f"{argument}: {raised_by} raised an error for a batch ({raised}). The batch contains"
        f" {describe_batch(batch)}"
    )
    if isinstance(error, TypeError):
        message += _accepted(model)
    return InputError(f"{message}. {remedy}", "batch-not-accepted", argument=argument)


def describe_batch(batch: object) -> str:
    """Return the types and shapes of a batch, as in `inputs float32 (4, 8), targets int64 (4,)`."""
    if isinstance(batch, Mapping):
        entries = [f"{name}: {describe_batch(value)}" for name, value in batch.items()]
        if not entries:
            return "no entries"
    elif isinstance(batch, tuple) and len(batch) == 2:
        entries = [f"inputs {describe_batch(batch[0])}", f"targets {describe_batch(batch[1])}"]
    elif isinstance(batch, (tuple, list)):
        entries = [describe_batch(value) for value in batch]
    elif isinstance(batch, Tensor):
        return _describe_tensor(batch)
    else:
        return type(batch).__name__
    if len(entries) > MOST_ENTRIES:
        entries = [*entries[:MOST_ENTRIES], "..."]
    return ", ".join(entries)


def _describe_tensor(x: Tensor) -> str:
    text = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
    if x.device.type != "cpu":
        return f"{text} on {x.device}"
    if x.dtype in (torch.int64, torch.int32) and x.numel() and type(x) is Tensor:
        text += f" with values {int(x.min())} to {int(x.max())}"  # for an index out of range
    return text


def _accepted(model: Callable[..., object]) -> str:
    """Return the arguments of the model's forward, as a part of a message."""
    if isinstance(model, nn.Module):
        forward = unwrap(model).forward
    else:
        forward = model
    try:
        names = list(inspect.signature(forward).parameters)
    except (TypeError, ValueError):  # written in C
        return ""
    if not names:
        return ""
    return f"; the model's forward accepts {', '.join(names)}"
