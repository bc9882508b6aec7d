"""Sizes and settings that all blocks of a Transformer share, validated once.

    C_Q, C_K, C_V, C_U   queries, keys, values, and the matrix of all heads    S2 (1.27)-(1.30)
    C_W, C_X             the MLP's matrices, n -> M n and M n -> n             S2 (1.31)-(1.32)

These constants belong to the initial variance, C_G / fan_in.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from orderone.core.errors import InputError, instance, one_of
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
    """Sizes and settings of a block. With `uniform`, matrices have a uniform distribution."""

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
            raise InputError(
                f"heads: expected a divisor of the width {width}, got {heads}; the nearest divisor"
                f" is {nearest}",
                argument="heads",
            )
        if not (real(self.mlp, "mlp", above=0) * width).is_integer():
            raise InputError(
                f"mlp: expected a number for which mlp * width is whole, got {self.mlp} for the"
                f" width {width}",
                argument="mlp",
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
    """Raise an InputError for a value that is not a bool: "no" would count as true."""
    for name, value in values.items():
        instance(value, bool, name, "pass True or False")


def read_scales(C: Scales, default: Mapping[str, float]) -> dict[str, float]:
    """Return the constants C of a model: its defaults, replaced by those of the user."""
    if C is None:
        return dict(default)
    if not isinstance(C, Mapping):
        raise InputError(
            f'C: expected {{"Q": 1.0, ...}} with groups {", ".join(default)}; got {C!r}',
            argument="C",
        )
    for group, value in C.items():
        if group not in default:
            one_of(group, default, "group in C")
        real(value, f"C[{group!r}]", least=0)
    return {**default, **C}
