"""Updates of many members at once: stacked tensors of shape (K, ...), and settings with K entries.

An update changes one stacked parameter in place. It reads the gradient, a state of named tensors,
and coefficients, one for each member, of the shape (K, 1, ..., 1). The coefficients come from the
settings (learning rate, betas, ...) and the number of the step. They are computed in double
precision, since 1 - beta^t in single precision would lose the first steps; and for all tensors at
once, since a GPU would compute them again for every entry. Each update is the law of `torch.optim`,
up to rounding.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

State: TypeAlias = dict[str, Tensor]
Settings: TypeAlias = Mapping[str, Tensor]
Options: TypeAlias = Mapping[str, Any]  # options of a constructor: numbers, pairs, strings, None


@dataclass(frozen=True)
class UpdateCounts:
    """Number of updates of each tensor by member, the present one included."""

    counts: Tensor  # (K, tensors)
    places: Mapping[str, int]  # column of each tensor

    def __getitem__(self, name: str) -> Tensor:
        return self.counts[:, self.places[name]]

    def of(self, names: Iterable[str]) -> Tensor:
        """Return the counts of these tensors, (tensors, K); adjacent columns give a view."""
        places = [self.places[name] for name in names]
        first = places[0]
        if places == list(range(first, first + len(places))):
            return self.counts[:, first : first + len(places)].mT
        return torch.stack([self.counts[:, place] for place in places])


class TensorUpdates(ABC):
    """Updates of all tensors that share an update law."""

    parameters: Mapping[str, Tensor]

    @abstractmethod
    def step(self, gradients: Mapping[str, Tensor], t: UpdateCounts, factor: Tensor) -> None:
        """Update the tensors that have a gradient; `factor` multiplies all learning rates."""


class Update(ABC):
    """Update law of one optimizer for stacked members."""

    numbers: ClassVar[tuple[str, ...]]  # settings that may differ between members
    shared: ClassVar[tuple[str, ...]] = ()  # options that may not differ
    # options with the only supported value
    refused: ClassVar[Mapping[str, object]] = {"maximize": False}
    elementwise: ClassVar[bool] = True  # torch.compile then makes one kernel
    inner_precision: ClassVar[torch.dtype | None] = None  # None: that of the parameter

    def __init__(self, options: Options):
        self.options = options

    @abstractmethod
    def state(self, p: Tensor) -> State:
        """Return the state before the first step."""

    @abstractmethod
    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        """Return the coefficients of the update from the settings and h["t"], the step from 1."""

    @abstractmethod
    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        """Update `p` and `state` in place, from the gradient `g` and the coefficients `c`."""

    def cpu_kernel(
        self,
        parameters: Mapping[str, Tensor],
        states: Mapping[str, State],
        settings: Mapping[str, Settings],
    ) -> TensorUpdates | None:
        """Return the same updates by a CPU kernel of torch, or None if there is none."""
        return None


def member_norm(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each member, (K, 1, ..., 1)."""
    axes = tuple(range(1, x.dim()))
    if axes:
        return torch.linalg.vector_norm(x, dim=axes, keepdim=True)
    return x.abs()
