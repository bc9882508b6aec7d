"""What an update is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

State = dict[str, Tensor]
Settings = Mapping[str, Tensor]


class Update(ABC):
    """One law. `numbers` may differ between members; `shared` may not; `refused` must keep the
    value given here."""

    numbers: ClassVar[tuple[str, ...]]
    shared: ClassVar[tuple[str, ...]] = ()
    refused: ClassVar[Mapping[str, Any]] = {"maximize": False}
    elementwise: ClassVar[bool] = True  # then torch.compile makes one kernel of it

    def __init__(self, options: Mapping[str, Any]):
        self.options = options

    @abstractmethod
    def state(self, p: Tensor) -> State:
        """Before the first step."""

    @abstractmethod
    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        """What the update reads, from the settings and h["t"], the number of the step from 1."""

    @abstractmethod
    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None: ...


def member_norm(x: Tensor) -> Tensor:
    """Euclidean norm of each member, (K, 1, ..., 1)."""
    axes = tuple(range(1, x.dim()))
    if axes:
        return torch.linalg.vector_norm(x, dim=axes, keepdim=True)
    return x.abs()
