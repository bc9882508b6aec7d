"""Precision of a training: autocast of passes, or the precision of parameters and batches.

float32     parameters and batches as they are
bfloat16    passes under autocast; parameters stay in float32
float16     the same, with a scale of the loss
float64     parameters and floating-point batches in double precision
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError, one_of
from orderone.core.inputs import Name
from orderone.torch_compat import tree_map

PRECISIONS = ("float32", "bfloat16", "float16", "float64")
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}  # by autocast
Tree = TypeVar("Tree")


def read_precision(precision: Name) -> str:
    """Return the name of a precision; raise an InputError if it is not supported."""
    return one_of(precision, PRECISIONS, "precision")


@dataclass(frozen=True)
class Precision:
    """One of PRECISIONS."""

    name: str = "float32"

    @property
    def dtype(self) -> torch.dtype | None:
        """Data type of the parameters; None leaves them as they are."""
        if self.name == "float64":
            return torch.float64
        return None

    @property
    def half(self) -> torch.dtype | None:
        """Precision of autocast; None without autocast."""
        return HALF.get(self.name)

    @property
    def scales_loss(self) -> bool:
        """Whether gradients would underflow to zero without a scale of the loss."""
        return self.half == torch.float16

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context of forward passes and losses."""
        if self.half is None:
            return nullcontext()
        return torch.autocast(device.type, self.half)

    def passes(self, model: nn.Module) -> AbstractContextManager[object]:
        """Return the context of forward passes of a model, on its device."""
        return self.autocast(next(model.parameters()).device)

    def cast_batch(self, batch: Tree) -> Tree:
        """Return a batch whose floating-point tensors have the precision of the model."""
        if self.dtype is None:
            return batch
        return tree_map(lambda x: _in_double(x) if isinstance(x, Tensor) else x, batch)


SINGLE = Precision()


def cast_model(model: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
    """Move a model to its device and precision, in place; complex tensors stay complex."""
    tensors = [*model.parameters(), *model.buffers()]
    if dtype is None or not any(tensor.is_complex() for tensor in tensors):
        model.to(device, dtype)
        return
    model.to(device)
    for tensor in tensors:
        if tensor.is_complex():
            tensor.data = tensor.data.to(dtype.to_complex())
        elif tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)


def float16_parameters() -> InputError:
    """Return the error for parameters in float16, whose gradients cannot be unscaled."""
    return InputError(
        "precision: float16 needs parameters in float32, and this model has parameters in float16,"
        " whose gradients cannot be unscaled; remove .half(): autocast computes in float16 all the"
        " same",
        "float16-parameters",
        argument="precision",
    )


def _in_double(x: Tensor) -> Tensor:
    if x.is_floating_point():
        return x.to(torch.float64)
    if x.is_complex():
        return x.to(torch.complex128)
    return x
