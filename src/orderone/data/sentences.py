"""Text as sentences: all tokens, and the place where each sentence starts.

A sentence ends after . ! or ? (and closing quotation marks or brackets) before white space, or
before an empty line. The white space in front of a sentence is part of it, as in the tokens of
GPT-2. Sentences that are longer than a sample are cut.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from orderone.data.encode import encode_pieces
from orderone.data.inputs import Cache, Root, Tokenizer

_BOUNDARY = re.compile(rb"""(?<=[.!?])["')\]]*(?=\s)|(?=\n[ \t]*\n)""")
PARTS = 16


@dataclass(frozen=True)
class Sentences:
    """Tokens, and the place where each sentence starts."""

    tokens: Tensor  # (tokens,)
    starts: Tensor  # (sentences + 1,): the last is the number of tokens

    @classmethod
    def of(cls, tokens: Tensor, lengths: Tensor) -> "Sentences":
        """Make sentences of these lengths."""
        return cls(tokens, torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def to(self, device: torch.device) -> "Sentences":
        """Copy to a device."""
        return Sentences(self.tokens.to(device), self.starts.to(device))

    def split(self, held_out: float) -> tuple["Sentences", "Sentences"]:
        """Return sentences to train on and to hold out.

        The last sentences of each of sixteen equal parts are held out.
        """
        parts = max(1, min(PARTS, int(held_out * len(self))))
        place = torch.arange(len(self)) * parts / len(self) % 1
        if held_out:
            held = place >= 1 - held_out
        else:
            held = torch.zeros(len(self), dtype=torch.bool)
        return self._chosen(~held), self._chosen(held)

    def _chosen(self, chosen: Tensor) -> "Sentences":
        lengths = self.starts.diff()
        return Sentences.of(self.tokens[chosen.repeat_interleave(lengths)], lengths[chosen])


def read_sentences(
    text: bytes, tokenizer: Tokenizer, longest: int, root: Root, cache: Cache
) -> tuple[Sentences, int]:
    """Return the sentences of a text, at most `longest` tokens each, and the vocabulary's size."""
    tokens, lengths, vocab = encode_pieces(pieces_of(text), tokenizer, root, cache)
    return Sentences.of(tokens, cut(lengths[lengths > 0], longest)), vocab


def pieces_of(text: bytes) -> list[bytes]:
    """Cut a text into sentences."""
    ends = [match.end() for match in _BOUNDARY.finditer(text)]
    return [text[i:j] for i, j in pairwise(sorted({0, *ends, len(text)}))]


def cut(lengths: Tensor, longest: int) -> Tensor:
    """Return lengths in which a sentence longer than `longest` becomes several."""
    pieces = -(-lengths // longest)
    parts = torch.full((int(pieces.sum()),), longest)
    parts[pieces.cumsum(0) - 1] = lengths - (pieces - 1) * longest
    return parts
