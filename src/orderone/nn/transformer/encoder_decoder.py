"""The encoder-decoder of S2 II.2.B: BART with the norm at the start of every residual branch.

    encoder    words + positions, norm, blocks of bidirectional attention and MLP, norm
    decoder    words + separate positions, norm, blocks of causal attention, attention to the
               encoder and MLP, norm
    head       the word embedding again, times N_rescale

The norms after both embeddings and after the encoder are the three that S2 adds to those of the
residual branches. In the attention to the encoder, keys and values read its normalized output (S2
(2.3)-(2.4)); padding is masked there and in the encoder.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.nn.inputs import Scales, Switch
from orderone.nn.transformer.attention import read_mask
from orderone.nn.transformer.blocks import DecoderBlock, EncoderBlock, Stack
from orderone.nn.transformer.language import TiedHead, embed, words
from orderone.nn.transformer.layers import Positions, Table, norm, rounded
from orderone.nn.transformer.shape import Shape, read_scales, switches
from orderone.theory.scaling import language_constants


class EncoderDecoder(nn.Module):
    """Source (batch, tokens) and target (batch, tokens) -> logits (batch, target tokens, vocab)."""

    words: Table
    encoder_positions: Positions
    encoder_stem_norm: nn.LayerNorm
    encoder: Stack
    encoder_norm: nn.LayerNorm
    decoder_positions: Positions
    decoder_stem_norm: nn.LayerNorm
    decoder: Stack
    norm: nn.LayerNorm
    dropout: nn.Dropout
    head: TiedHead

    def __init__(
        self,
        vocab: Count = 50265,
        length: Count = 514,
        width: Count = 1024,
        heads: Count = 16,
        depth: Count = 12,
        mlp: Number = 4,
        *,
        activation: Name = "gelu",
        bias: Switch = False,
        affine: Switch = False,
        eps: Number = 1e-5,
        dropout: Number = 0.0,
        padding: Count | None = None,
        rescale: Number = 1.0,
        checkpoint: Switch = False,
        C: Scales = None,
    ):
        super().__init__()
        switches(checkpoint=checkpoint)
        depth = count(depth, "depth")
        length = count(length, "length")
        C = read_scales(C, language_constants(count(width, "width"), mlp))
        shape = Shape(width, heads, mlp, activation, bias, affine, eps, dropout, C)
        self.words = words(vocab, width, C["WE"], padding)
        self.encoder_positions = Positions(length, width, C["PE"])
        self.encoder_stem_norm = norm(width, eps, affine)
        self.encoder = Stack((EncoderBlock(shape) for _ in range(depth)), checkpoint=checkpoint)
        self.encoder_norm = norm(width, eps, affine)
        self.decoder_positions = Positions(length, width, C["PE"])
        self.decoder_stem_norm = norm(width, eps, affine)
        self.decoder = Stack((DecoderBlock(shape) for _ in range(depth)), checkpoint=checkpoint)
        self.norm = norm(width, eps, affine)
        self.dropout = nn.Dropout(dropout)
        self.head = TiedHead(self.words, rescale)

    def forward(self, source: Tensor, target: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Return logits for the tokens that follow those of `target`.

        `target` is the input of the decoder: the labels shifted by one position. `source_mask`
        (batch, source tokens) is true where the source has a token and not padding.
        """
        mask = read_mask(source_mask, source, "source_mask")
        return self.decode(target, self.encode(source, mask), mask)

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the normalized output of the encoder, (batch, tokens, width)."""
        z = self.encoder_stem_norm(embed(self.words, self.encoder_positions, source, "source"))
        return self.encoder_norm(self.encoder(self.dropout(z), mask))

    def decode(self, target: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits, where `memory` is the result of `encode`."""
        z = self.decoder_stem_norm(embed(self.words, self.decoder_positions, target, "target"))
        if len(z) != len(memory):
            raise InputError(
                f"target: expected as many sequences as in the source, {len(memory)}; got {len(z)}",
                argument="target",
            )
        return self.head(self.norm(self.decoder(self.dropout(z), rounded(memory), mask)))

    def tie_weights(self) -> None:
        """Make head and words one tensor again, after `to_empty` has separated them."""
        self.head.weight = self.words.weight
