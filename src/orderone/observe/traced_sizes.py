"""Sizes of tensors inside compiled programs: a custom operation, and a tap for gradients.

The compiler does not look into the operation `orderone::sizes`, so that the numbers are those that
the same functions give for models that are not compiled. `Tap` returns its input. Its backward pass
sizes the gradient, and returns these sizes as the "gradient" of a row of zeros. A hook on the rows
then receives the sizes of all gradients together, in any program that computes gradients.
"""

from typing import Any

import torch
from torch import Tensor

from orderone.core.unchecked import no_type_check
from orderone.observe.device_queue import MARK
from orderone.observe.moments import sizes_of


@torch.library.custom_op("orderone::sizes", mutates_args=())
def sizes(x: Tensor, mark: float) -> Tensor:
    """Return norm, sum, largest absolute value, and non-finite entries + `mark`: (4,), double."""
    sizes = sizes_of(x)
    if mark:
        sizes[3] += mark
    return sizes


@sizes.register_fake
def _(x: Tensor, mark: float) -> Tensor:
    return x.new_empty(4, dtype=torch.float64)


class Tap(torch.autograd.Function):
    """Return `x`; the sizes of its gradient become the gradient of `row`."""

    @staticmethod
    @no_type_check
    def forward(ctx: Any, x: Tensor, row: Tensor) -> Tensor:
        return x.clone()  # compilers remove it; a view could not be written to

    @staticmethod
    @no_type_check
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient, sizes(gradient.detach(), MARK)
