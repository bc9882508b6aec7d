"""Spectral norms of weights and of their updates, while a model trains.

    |W|_2 = Theta(1)                               S0, Condition A.1, for l = 1 .. L+1
    |W|_2, |dW|_2 = Theta((fan_out / fan_in)^{1/2})  Yang, Simon and Bernstein 2023, Condition 1

Both agree for hidden matrices. They differ for readouts, whose fan-out does not grow. The table has
the norm, for the first condition, and `relative`, the norm divided by (fan_out / fan_in)^{1/2}, for
the second one.

A convolution is the matrix (outputs, inputs x kernel), one for each group. A tensor with an axis of
experts in front of its fan-in and fan-out is a stack of matrices. Embeddings and filters of single
channels are no matrices: they multiply no vector.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.measure import records
from orderone.measure.largest_singular import is_exact, largest_singular
from orderone.observe.inventory import Item, Layout, inventory, modules_by_name
from orderone.observe.quantities import Quantity
from orderone.observe.tensor_facts import is_measurable

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["step", "module", "matrix", "quantity", "norm", "relative", "method"]
Row = tuple[int, str, int, str, float, float, str]
CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)


@dataclass(frozen=True)
class MatrixAxes:
    """How to read a tensor as a stack of matrices (matrices, fan_out, fan_in).

    `is_declared` is False for tensors of module types that are not registered: which of their axes
    is the fan-in is not known.
    """

    fan_out: tuple[int, ...]
    fan_in: tuple[int, ...]
    groups: int = 1
    is_declared: bool = True

    def stack(self, x: Tensor) -> Tensor:
        """Return the matrices of a tensor, (matrices, fan_out, fan_in).

        Axes in front of the last axis of fan-in and fan-out count matrices; axes behind it are a
        kernel, and are summed over.
        """
        x = x.unflatten(0, (self.groups, -1))
        fan_out = [axis + 1 for axis in self.fan_out]
        fan_in = [axis + 1 for axis in self.fan_in]
        last = max(fan_out + fan_in)
        stacked = [axis for axis in range(last) if axis not in fan_out + fan_in]
        fan_in += range(last + 1, x.dim())
        rows = math.prod(x.shape[axis] for axis in fan_out)
        columns = math.prod(x.shape[axis] for axis in fan_in)
        return x.permute(*stacked, *fan_out, *fan_in).reshape(-1, rows, columns)


class SpectralMeter:
    """Record the spectral norms of matrices before every `every`-th step, and of their updates."""

    def __init__(
        self, model: nn.Module, wanted: Callable[[str], bool] = lambda name: True, every: int = 1
    ) -> None:
        self.every = every
        self.rows: list[Row] = []
        self._matrices: dict[str, tuple[Tensor, MatrixAxes]] = {}
        self._before: dict[str, Tensor] = {}
        modules = modules_by_name(model)
        for name, item in inventory(model).items():
            if not wanted(name) or not is_measurable(item.tensor):
                continue
            axes = _axes(item, modules)
            if axes is None:
                continue
            if hasattr(item.tensor, "to_local"):
                raise _distributed(name)
            self._matrices[name] = (item.tensor, axes)
        if not self._matrices:
            raise InputError(
                "spectral: expected a matrix among the tensors to record, got none; pass"
                " spectral=False or other modules",
                argument="spectral",
            )

    @torch.no_grad()
    def before_step(self, step: int) -> None:
        """Record the weights, and copy those that are trained."""
        self._before = {}
        if step % self.every:
            return
        for name, (tensor, axes) in self._matrices.items():
            self.rows += _rows(step, name, Quantity.WEIGHT, tensor, axes)
            if tensor.requires_grad:
                self._before[name] = tensor.clone()

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Record the updates since `before_step`."""
        for name, before in self._before.items():
            tensor, axes = self._matrices[name]
            self.rows += _rows(step, name, Quantity.UPDATE, tensor - before, axes)
        self._before = {}

    def frame(self, provenance: Mapping[str, object]) -> "pd.DataFrame":
        """Return one row for each step, matrix and quantity."""
        return records.table(self.rows, COLUMNS, provenance)


def _axes(item: Item, modules: Mapping[str, nn.Module]) -> MatrixAxes | None:
    """Return how to read a tensor as matrices; None if it holds no matrix."""
    layouts: list[Layout | None] = []
    for place in item.places:
        layouts.append(place.layout)
        if place.layout is None or place.layout.kind != "matrix":
            continue
        module = modules[place.module]
        if isinstance(module, CONVOLUTIONS):
            groups = module.groups
        else:
            groups = 1
        has_one_channel = groups > 1 and math.prod(item.shape[:2]) == groups
        if has_one_channel or max(place.layout.fan_in + place.layout.fan_out) >= len(item.shape):
            return None
        return MatrixAxes(place.layout.fan_out, place.layout.fan_in, groups)
    if any(layout is not None for layout in layouts):
        return None
    if len(item.shape) in (2, 3):  # of a type that is not registered: a matrix, or one per expert
        last = len(item.shape) - 1
        return MatrixAxes((last - 1,), (last,), is_declared=False)
    return None


def _rows(step: int, name: str, quantity: Quantity, x: Tensor, axes: MatrixAxes) -> Iterator[Row]:
    for number, matrix in enumerate(axes.stack(x.detach())):
        fan_out, fan_in = matrix.shape
        norm = largest_singular(matrix)
        relative = math.nan
        if axes.is_declared:
            relative = norm / math.sqrt(fan_out / fan_in)
        if is_exact(fan_out, fan_in):
            method = "exact"
        else:
            method = "lanczos"
        yield step, name, number, quantity.value, norm, relative, method


def _distributed(name: str) -> InputError:
    return InputError(
        f"spectral: expected whole matrices in every process, got {name}, of which a process has a"
        " part; record spectral norms of a model that is not sharded",
        argument="spectral",
    )
