"""Multi-head attention, within one sequence or from one to another.

    r_t         = sum_h U^h sum_t' Omega^h_tt' V^h s'_t'                      S2 (1.13)-(1.19)
    Omega^h_t.  = softmax_t'( (Q^h s_t) . (K^h s'_t') / sqrt(C) )             S2 (2.2)-(2.4)
    C           = n / H

s' = s in self-attention. Q, K and V are separate tensors, not one packed matrix: so each can have
its initial size and learning rate, queries can absorb the extra 1/sqrt(C) of muP's scores, and
Muon updates three matrices.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.nn.transformer.layers import Linear, rounded
from orderone.nn.transformer.shape import Shape


class Attention(nn.Module):
    """Attention with heads of equal size."""

    heads: int
    causal: bool
    dropout: float
    query: Linear
    key: Linear
    value: Linear
    out: Linear

    def __init__(self, shape: Shape, *, causal: bool = False):
        super().__init__()
        self.heads = shape.heads
        self.causal = causal
        self.dropout = shape.dropout
        self.query = _matrix(shape, "Q")
        self.key = _matrix(shape, "K")
        self.value = _matrix(shape, "V")
        self.out = _matrix(shape, "U")

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Return r_t; `mask` (batch, keys) is true where there is a token and not padding."""
        x = rounded(x)
        memory = x if memory is None else memory
        q = self._split(self.query(x))
        k = self._split(self.key(memory))
        v = self._split(self.value(memory))
        if mask is not None:
            mask = mask[:, None, None, :]
        if self.training:
            dropout = self.dropout
        else:
            dropout = 0.0
        read = nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=self.causal
        )
        return self.out(read.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """Reshape (batch, tokens, n) to (batch, heads, tokens, C)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, causal={self.causal}"


def _matrix(shape: Shape, group: str) -> Linear:
    return Linear(shape.width, shape.width, shape.C[group], bias=shape.bias, uniform=shape.uniform)


def read_mask(mask: Tensor | None, tokens: Tensor, name: str) -> Tensor | None:
    """Return a mask that is true where there is a token.

    Whole numbers mean the same as in Hugging Face's attention masks.
    """
    if mask is None:
        return None
    if mask.shape != tokens.shape:
        raise InputError(
            f"{name}: expected the shape of the tokens, {tuple(tokens.shape)}, with true for tokens"
            f" and false for padding; got the shape {tuple(mask.shape)}",
            argument=name,
        )
    return mask.to(torch.bool)
