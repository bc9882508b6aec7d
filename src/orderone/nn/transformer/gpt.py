"""Decoder-only language model of S2 Part I: words + positions, causal blocks, a norm, a head.

The head is the word embedding times N_rescale (S2 (1.24)), or with `tied=False` a separate matrix
(S2 (1.22)).

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.nn.inputs import Scales, Switch
from orderone.nn.transformer.blocks import EncoderBlock, Stack
from orderone.nn.transformer.language import TiedHead, embed, words
from orderone.nn.transformer.layers import Linear, Positions, Table, norm
from orderone.nn.transformer.shape import Shape, read_scales, switches
from orderone.theory.scaling import language_constants


class GPT(nn.Module):
    """Tokens (batch, tokens) -> logits (batch, tokens, vocab)."""

    words: Table
    positions: Positions
    dropout: nn.Dropout
    layers: Stack
    norm: nn.LayerNorm
    head: TiedHead | Linear

    def __init__(
        self,
        vocab: Count = 50257,
        length: Count = 1024,
        width: Count = 768,
        heads: Count = 12,
        depth: Count = 12,
        mlp: Number = 4,
        *,
        tied: Switch = True,
        activation: Name = "gelu",
        bias: Switch = False,
        affine: Switch = False,
        eps: Number = 1e-5,
        dropout: Number = 0.0,
        rescale: Number = 1.0,
        checkpoint: Switch = False,
        C: Scales = None,
    ):
        super().__init__()
        switches(tied=tied, checkpoint=checkpoint)
        if not tied and rescale != 1:
            raise InputError(
                f"rescale: expected 1 with tied=False, where C['head'] sets the size of the head;"
                f" got {rescale}; pass tied=True, or C={{'head': ...}}",
                argument="rescale",
            )
        C = read_scales(C, language_constants(count(width, "width"), mlp))
        shape = Shape(width, heads, mlp, activation, bias, affine, eps, dropout, C)
        self.words = words(vocab, width, C["WE"], padding=None)
        self.positions = Positions(count(length, "length"), width, C["PE"])
        self.dropout = nn.Dropout(dropout)
        self.layers = Stack(
            (EncoderBlock(shape, causal=True) for _ in range(count(depth, "depth"))),
            checkpoint=checkpoint,
        )
        self.norm = norm(width, eps, affine)
        if tied:
            self.head = TiedHead(self.words, rescale)
        else:
            self.head = Linear(width, vocab, C["head"])

    def forward(self, ids: Tensor) -> Tensor:
        z = self.dropout(embed(self.words, self.positions, ids, "ids"))
        return self.head(self.norm(self.layers(z)))

    def tie_weights(self) -> None:
        """Make head and words one tensor again, after `to_empty` has separated them."""
        if isinstance(self.head, TiedHead):
            self.head.weight = self.words.weight
