"""Types of the values that users pass to the models; see `orderone.core.inputs`."""

from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

import torch
from torch import Tensor, nn

from orderone.core.inputs import UserInput
from orderone.theory import kernels

Device: TypeAlias = Annotated[torch.device | str | int | None, UserInput]
Layer: TypeAlias = Annotated[kernels.Layer, UserInput]  # a network as theory describes it
Model: TypeAlias = Annotated[nn.Module, UserInput]
ModuleNames: TypeAlias = Annotated[tuple[str, ...] | list[str], UserInput]
Phi: TypeAlias = Annotated[Callable[[Tensor], Tensor], UserInput]  # elementwise
Scales: TypeAlias = Annotated[Mapping[str, float] | None, UserInput]  # the constants C by group
Switch: TypeAlias = Annotated[bool, UserInput]
