"""Word embedding and tied head of the language models.

    z_t       = W^WE_{token t} + b^PE_t                                       S2 (1.9)
    output_j  = N_rescale sum_i W^WE_ij s_i                                   S2 (1.24)

The head is the word embedding. The strategies of S2 need N_rescale = n^-(1+s)/2 (erratum S2.9);
`orderone.plan` multiplies the head by it, unless `rescale` already has this value. Initially every
tensor has the standard deviation 0.02 (S2 II.2.C), which means C = 0.02^2 fan_in for matrices, and
C = 0.02^2 for words and positions (erratum S2.8).

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count, Number
from orderone.core.reals import real
from orderone.nn.transformer.layers import Positions, Table


class TiedHead(nn.Linear):
    """Head N_rescale W^T s, where W is the word embedding."""

    weight: Tensor
    rescale: float

    def __init__(self, words: Table, rescale: Number):
        # On the meta device a second table takes no memory.
        super().__init__(words.embedding_dim, words.num_embeddings, bias=False, device="meta")
        self.weight = words.weight
        self.rescale = real(rescale, "rescale", above=0)

    def reset_parameters(self) -> None:
        """Do nothing: the table draws the weight."""

    def forward(self, input: Tensor) -> Tensor:
        if self.rescale != 1:
            input = input * self.rescale
        return super().forward(input)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, tied, rescale={self.rescale:.4g}"


def words(vocab: Count, width: Count, C: Number, padding: Count | None) -> Table:
    """Return the word embedding."""
    vocab = count(vocab, "vocab")
    if padding is not None:
        padding = count(padding, "padding", least=0, most=vocab - 1)
    return Table(vocab, width, C, padding=padding)


def embed(table: nn.Module, positions: Positions, ids: Tensor, name: str) -> Tensor:
    """Return words + positions, S2 (1.9), for (batch, tokens) of whole numbers."""
    if ids.dim() != 2 or ids.dtype not in (torch.long, torch.int):
        raise InputError(
            f"{name}: expected whole numbers of the shape (batch, tokens), got {ids.dtype} of the"
            f" shape {tuple(ids.shape)}; pass token numbers, not embeddings",
            argument=name,
        )
    return table(ids) + positions(ids.shape[1])
