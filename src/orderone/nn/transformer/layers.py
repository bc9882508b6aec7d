"""Matrices, tables and norms; each is drawn with the variance of its group.

    Var(W_ij)  = C / fan_in      a matrix                                      S2 (1.25)-(1.34)
    Var(b_i)   = C               a table: words, positions, a class token

C is of order one. Biases start at zero, gains at one. Every layer draws its tensors in
`reset_parameters`, so that a model built on the meta device gets the same initial sizes.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.core.inputs import Count, Number


class Linear(nn.Linear):
    """Matrix of variance C / fan_in, normal or uniform."""

    C: float
    uniform: bool

    def __init__(
        self,
        inputs: Count,
        outputs: Count,
        C: Number = 1.0,
        *,
        bias: bool = False,
        uniform: bool = False,
    ):
        self.C = C
        self.uniform = uniform  # before torch's constructor, which draws
        super().__init__(inputs, outputs, bias)

    def reset_parameters(self) -> None:
        std = (self.C / self.in_features) ** 0.5
        if self.uniform:
            nn.init.uniform_(self.weight, -(3**0.5) * std, 3**0.5 * std)
        else:
            nn.init.normal_(self.weight, std=std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Table(nn.Embedding):
    """Table of rows with variance C; the row of the padding token, if any, starts at zero."""

    C: float

    def __init__(self, rows: Count, width: Count, C: Number = 1.0, *, padding: Count | None = None):
        self.C = C
        super().__init__(rows, width, padding_idx=padding)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.C**0.5)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].fill_(0)


class Positions(Table):
    """Table of positions; returns its first rows, one for each token.

    A slice costs less than a lookup.
    """

    def forward(self, tokens: int) -> Tensor:  # type: ignore[override]
        if tokens > self.num_embeddings:
            raise InputError(
                f"tokens: expected at most {self.num_embeddings}, the number of positions; got"
                f" {tokens}; cut the sequence, or build the model with a larger length",
                argument="tokens",
            )
        return self.weight[:tokens]


def norm(width: Count, eps: Number, affine: bool) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps, elementwise_affine=affine)


def rounded(x: Tensor) -> Tensor:
    """Return `x` in the precision of autocast.

    This rounds once; otherwise every matrix that reads `x` would round it again.
    """
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x
