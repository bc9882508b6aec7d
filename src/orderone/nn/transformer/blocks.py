"""Residual blocks with the norm at the start of each branch, and stacks of them.

    z <- z + R(norm(z))                                                       S2 (1.20)-(1.21)

R is attention (S2 (1.19)), attention to an encoder's output, or the MLP X sigma(W s). The residual
stream z itself is not normalized.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from orderone.nn.transformer.attention import Attention
from orderone.nn.transformer.layers import Linear, norm
from orderone.nn.transformer.shape import ACTIVATIONS, Shape


class MLP(nn.Module):
    """Two matrices with an activation between them."""

    activation: Callable[[Tensor], Tensor]
    up: Linear
    down: Linear

    def __init__(self, shape: Shape):
        super().__init__()
        self.activation = ACTIVATIONS[shape.activation.lower()]
        self.up = Linear(
            shape.width, shape.inner, shape.C["W"], bias=shape.bias, uniform=shape.uniform
        )
        self.down = Linear(
            shape.inner, shape.width, shape.C["X"], bias=shape.bias, uniform=shape.uniform
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class EncoderBlock(nn.Module):
    """Attention among the tokens, causal in a decoder-only model, then the MLP."""

    attention_norm: nn.LayerNorm
    attention: Attention
    mlp_norm: nn.LayerNorm
    mlp: MLP
    dropout: nn.Dropout

    def __init__(self, shape: Shape, *, causal: bool = False):
        super().__init__()
        self.attention_norm = norm(shape.width, shape.eps, shape.affine)
        self.attention = Attention(shape, causal=causal)
        self.mlp_norm = norm(shape.width, shape.eps, shape.affine)
        self.mlp = MLP(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask=mask))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class DecoderBlock(nn.Module):
    """Causal attention, attention to the encoder's output, MLP."""

    attention_norm: nn.LayerNorm
    attention: Attention
    cross_attention_norm: nn.LayerNorm
    cross_attention: Attention
    mlp_norm: nn.LayerNorm
    mlp: MLP
    dropout: nn.Dropout

    def __init__(self, shape: Shape):
        super().__init__()
        self.attention_norm = norm(shape.width, shape.eps, shape.affine)
        self.attention = Attention(shape, causal=True)
        self.cross_attention_norm = norm(shape.width, shape.eps, shape.affine)
        self.cross_attention = Attention(shape)
        self.mlp_norm = norm(shape.width, shape.eps, shape.affine)
        self.mlp = MLP(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        x = x + self.dropout(self.cross_attention(self.cross_attention_norm(x), memory, mask))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Stack(nn.ModuleList):
    """Blocks one after the other.

    With `checkpoint`, the backward pass recomputes the activations inside each block.
    """

    def __init__(self, blocks: Iterable[nn.Module], *, checkpoint: bool = False):
        super().__init__(blocks)
        self.checkpoint = checkpoint

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        for block in self:
            if self.checkpoint and torch.is_grad_enabled():
                x = checkpoint(block, x, *context, use_reentrant=False)
            else:
                x = block(x, *context)
        return x
