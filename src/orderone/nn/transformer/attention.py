"""Multi-head attention: S2 (1.13)-(1.19), and with keys and values of another sequence S2
(2.2)-(2.4).

    r_t = sum_h U^h sum_t' Omega^h_tt' V^h s'_t',    Omega^h_t. = softmax_t'( (Q^h s_t) . (K^h
                                                     s'_t') / sqrt(C) ),   C = n/H

s' = s in self-attention. Q, K and V are tensors of their own, not one packed matrix: so each can
have its initial size and learning rate, queries can take the 1/sqrt(C) by which muP's scores
differ, and Muon sees three matrices.
"""

import torch
from torch import Tensor, nn

from orderone.nn.transformer.layers import Linear, rounded
from orderone.nn.transformer.shape import Shape


class Attention(nn.Module):
    def __init__(self, shape: Shape, *, causal: bool = False):
        super().__init__()
        self.heads = shape.heads
        self.causal = causal
        self.dropout = shape.dropout
        self.query, self.key, self.value, self.out = (
            Linear(shape.width, shape.width, shape.C[group], bias=shape.bias, uniform=shape.uniform)
            for group in ("Q", "K", "V", "U")
        )

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """`mask` (batch, tokens that are read) is true where there is a token."""
        x = rounded(x)
        memory = x if memory is None else memory
        q = self._split(self.query(x))
        k = self._split(self.key(memory))
        v = self._split(self.value(memory))
        read = nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=None if mask is None else mask[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=self.causal,
        )
        return self.out(read.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """(batch, tokens, n) -> (batch, heads, tokens, C)"""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, causal={self.causal}"


def read_mask(mask: Tensor | None, tokens: Tensor, name: str) -> Tensor | None:
    """True where there is a token; whole numbers are read as in Hugging Face's attention masks."""
    if mask is not None and mask.shape != tokens.shape:
        raise ValueError(
            f"{name}: expected one entry for each of {tuple(tokens.shape)} tokens, true where there"
            f" is one; got the shape {tuple(mask.shape)}"
        )
    return None if mask is None else mask.to(torch.bool)
