"""Sizes and settings that all blocks of a Transformer have in common, read once.

    C_Q, C_K, C_V, C_U   queries, keys, values, and the matrix of all heads    S2 (1.27)-(1.30)
    C_W, C_X             the MLP's matrices, n -> M n and M n -> n             S2 (1.31)-(1.32)

These constants belong to the initial variance, C_G / fan_in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from orderone.core.errors import instance, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.nn.inputs import Scales, Switch

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch.nn.functional.gelu,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class Shape:
    """Sizes and settings of a block. `uniform`: its matrices are drawn uniformly."""

    width: Count
    heads: Count
    mlp: Number
    activation: Name
    bias: Switch
    affine: Switch
    eps: Number
    dropout: Number
    C: Mapping[str, float]
    uniform: bool = False

    def __post_init__(self) -> None:
        width = count(self.width, "width")
        heads = count(self.heads, "heads")
        if width % heads:
            divisors = [h for h in range(1, width + 1) if width % h == 0]
            nearest = min(divisors, key=lambda h: abs(h - heads))
            raise ValueError(
                f"heads: expected a divisor of the width {width}, got {heads}; the nearest is"
                f" {nearest}"
            )
        if not (real(self.mlp, "mlp", above=0) * width).is_integer():
            raise ValueError(
                f"mlp: expected a multiplier with a whole mlp * width, got {self.mlp} for {width}"
            )
        one_of(self.activation, ACTIVATIONS, "activation")
        switches(bias=self.bias, affine=self.affine)
        real(self.eps, "eps", least=0)
        real(self.dropout, "dropout", least=0, most=1)

    @property
    def inner(self) -> int:
        """Return the width of the MLP."""
        return int(self.mlp * self.width)


def switches(**values: Switch) -> None:
    """Raise a ValueError for a value that is not a bool: "no" would count as true."""
    for name, value in values.items():
        instance(value, bool, name, "give True or False")


def read_scales(C: Scales, default: Mapping[str, float]) -> dict[str, float]:
    """Return the constants C of a model: those of the user, else its own."""
    if C is None:
        return dict(default)
    if not isinstance(C, Mapping):
        raise ValueError(
            f'C: expected {{"Q": 1.0, ...}} with groups {", ".join(default)}; got {C!r}'
        )
    for group, value in C.items():
        if group not in default:
            one_of(group, default, "group in C")
        real(value, f"C[{group!r}]", least=0)
    return {**default, **C}
