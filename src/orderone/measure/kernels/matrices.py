"""Kernel matrices as users have them: arrays of torch or numpy, on disk, or functions of tiles."""

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import Annotated, TypeAlias

import numpy as np
import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.core.inputs import UserInput

Matrix: TypeAlias = Annotated[Tensor | np.ndarray, UserInput]


@dataclass(frozen=True)
class Tiles:
    """A symmetric matrix that is computed when it is needed.

    `tile(rows, columns)` returns a part of it, for two slices. `keep` is the path of a new file for
    the upper triangle: tiles are then computed once, and read from the file afterwards.
    """

    size: int
    tile: Callable[[slice, slice], Tensor | np.ndarray]
    keep: str | PathLike[str] | None = None


def tensor(values: object, name: str) -> Tensor:
    """Return `values` as a floating tensor; integers become double precision."""
    try:
        if isinstance(values, Tensor):
            found = values.detach()
        else:
            found = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{name}: expected an array of numbers, got {type(values).__name__}", argument=name
        ) from error
    if not found.is_floating_point():
        found = found.double()
    if not bool(torch.isfinite(found).all()):
        raise InputError(f"{name}: expected finite numbers, got NaN or infinity", argument=name)
    return found


def flat_kernel(kernel: object, name: str, outputs: int | None) -> tuple[Tensor, int]:
    """Return a kernel as a matrix, and the number of outputs that it couples (1 if none).

    (a, b) holds for each output alone; (a, b, k, k) couples k outputs.
    """
    values = tensor(kernel, name).double()
    if values.dim() == 2:
        return values, 1
    if values.dim() == 4 and values.shape[2] == values.shape[3] == (outputs or 1):
        k = values.shape[2]
        matrix = values.permute(0, 2, 1, 3).reshape(values.shape[0] * k, values.shape[1] * k)
        return matrix, k
    raise InputError(
        f"{name}: expected a kernel of shape (examples, examples), or (examples, examples, k, k)"
        f" for targets with k = {outputs or 1} outputs; got {tuple(values.shape)}",
        argument=name,
    )
