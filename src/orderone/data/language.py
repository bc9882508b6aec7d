"""Language modelling: pieces of a text from random places, to predict the next token.

    pairs         (tokens s .. s + length - 1, tokens s + 1 .. s + length):  a model that gives
                  logits
    huggingface   {"input_ids": tokens, "labels": the same tokens}:          a model that shifts
                  them itself

All tokens are one tensor on the device; a batch is a lookup. The end of each of sixteen equal parts
of the text is held out, so that training and evaluation are of one kind even where the files are
sorted.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.data.corpus import read_corpus
from orderone.data.devices import read_device
from orderone.data.draws import Draws
from orderone.data.encode import encode
from orderone.data.order import spread
from orderone.data.task import EVALUATIONS, FORMATS, Batch

PARTS = 16


def language(
    source: Any = "python",
    tokenizer: Any = "bytes",
    batch: Count = 16,
    length: Count = 128,
    *,
    held_out: Number = 0.05,
    evaluations: Count = EVALUATIONS,
    format: Name = "pairs",
    vocab: Count | None = None,
    device: Any = None,
    root: Any = "data",
    cache: Any = None,
) -> "Language":
    """A task: predict the next token of `source`.

    Args:
        source: "python" (the text of the standard library), "sotu", "gutenberg" or "imdb" (in
            `root`), a file, a folder of .txt files, a list of files, bytes, or a tensor of token
            numbers.
        tokenizer: "bytes", "gpt2" (`encoder.json` and `vocab.bpe` in `root`), or a folder or
            `tokenizer.json` of your own.
        batch: How many pieces a batch has.
        length: How many tokens a piece has.
        held_out: The part of the text that is for evaluation.
        evaluations: How many batches of it are used at most.
        format: "pairs" of inputs and targets, or "huggingface".
        vocab: How many different tokens there are, for a tensor; by default the largest and one.
        device: Where the tokens are kept and batches are made.
        root: The folder of data sets.
        cache: Where encoded text is kept, by default in `root/encoded`; False for nowhere.
    """
    if isinstance(source, Tensor):
        tokens, size = _given_tokens(source, vocab)
    else:
        tokens, size = encode(read_corpus(source, root), tokenizer, root, cache)
    return Language(
        tokens,
        size,
        batch,
        length,
        held_out=held_out,
        evaluations=evaluations,
        format=format,
        device=device,
    )


class Language:
    """`vocab` is the number of different tokens, the size of the model's table."""

    loss = None  # the usual one: cross entropy, or the model's own

    def __init__(
        self,
        tokens: Tensor,
        vocab: Count,
        batch: Count = 16,
        length: Count = 128,
        *,
        held_out: Number = 0.05,
        evaluations: Count = EVALUATIONS,
        format: Name = "pairs",
        device: Any = None,
    ):
        self.vocab = count(vocab, "vocab")
        self.size = count(batch, "batch")
        self.length = count(length, "length")
        self.format = one_of(format, FORMATS, "format")
        self._window = self.length + (self.format == "pairs")
        training, held = _split(tokens, real(held_out, "held_out", least=0, most=0.9), self._window)
        self.held_out = _spread(held, self.size, count(evaluations, "evaluations", least=0))
        self.device = read_device(device)
        self._tokens = {self.device: training.to(self.device)}
        numbers = f"{self.size}x{self.length} held out {float(held_out)!r} {evaluations}"
        self.name = f"language {_hash(tokens)} {self.format} {numbers}"

    @property
    def tokens(self) -> Tensor:
        """What batches are drawn from."""
        return self._tokens[self.device]

    def batch(self, step: Count, seed: Count) -> Batch:
        return self._batch(self._pieces(step, [seed], self.device)[0])

    def stacked(self, step: Count, seeds: Sequence[int], device: Any = None) -> Batch:
        return self._batch(
            self._pieces(step, seeds, self.device if device is None else read_device(device))
        )

    def evaluation(self) -> list[Batch]:
        """Pieces of the held-out text, at equal distances and without overlap."""
        return [
            self._batch(piece.to(self.device).long())
            for piece in self.held_out.split(self.size)
            if len(piece)
        ]

    def _pieces(self, step: int, seeds: Sequence[int], device: torch.device) -> Tensor:
        if device not in self._tokens:
            self._tokens[device] = self.tokens.to(device)
        tokens = self._tokens[device]
        draws = Draws(seeds, step, device)
        starts = draws.below(len(tokens) - self._window + 1, "starts", self.size)
        pieces = tokens.unfold(0, self._window, 1).index_select(
            0, starts.flatten()
        )  # twice as fast as single tokens
        return pieces.long().view(len(seeds), self.size, self._window)

    def _batch(self, pieces: Tensor) -> Batch:
        if self.format == "huggingface":
            return {"input_ids": pieces, "labels": pieces}
        return pieces[..., :-1], pieces[..., 1:]

    def __repr__(self) -> str:
        return (
            f"Language({len(self.tokens):,} tokens of {self.vocab}, {self.held_out.shape[0]} pieces"
            f" held out, batches of {self.size} x {self.length}, {self.format})"
        )


def _split(tokens: Tensor, held_out: float, window: int) -> tuple[Tensor, Tensor]:
    """Training tokens, and held-out pieces (pieces, window)."""
    kept = int(held_out * len(tokens))
    parts = max(1, min(PARTS, kept // window))
    sections = tokens.tensor_split(parts)
    ends = [len(section) - kept // parts for section in sections]
    training = torch.cat([section[:end] for section, end in zip(sections, ends, strict=True)])
    if len(training) < window or (held_out and kept < window):
        raise ValueError(
            f"source: expected enough text for pieces of {window} tokens to train on and to hold"
            f" out, got {len(tokens)} tokens, of which held_out={held_out:g} leaves {len(training)}"
            f" and {kept}; give more text or a smaller length"
        )
    held = [section[end:] for section, end in zip(sections, ends, strict=True)]
    pieces = torch.cat([part[: len(part) // window * window].view(-1, window) for part in held])
    return training, pieces


def _spread(pieces: Tensor, size: int, batches: int) -> Tensor:
    """So many whole batches of `size` at most, at equal distances; one smaller batch where there is
    no whole one."""
    if len(pieces) < size:
        return pieces[: batches * size]
    return pieces[spread(len(pieces), min(len(pieces) // size, batches) * size)]


def _given_tokens(tokens: Tensor, vocab: Count | None) -> tuple[Tensor, int]:
    if tokens.dim() != 1 or tokens.is_floating_point() or not len(tokens) or tokens.min() < 0:
        raise ValueError(
            f"source: expected a tensor of token numbers of the shape (tokens,), got {tokens.dtype}"
            f" of {tuple(tokens.shape)}{'' if not tokens.numel() else f' from {tokens.min()}'}"
        )
    least = int(tokens.max()) + 1
    return tokens, count(least if vocab is None else vocab, "vocab", least=least)


def _hash(tokens: Tensor) -> str:
    return sha256(tokens.cpu().numpy().tobytes() + str(tokens.dtype).encode()).hexdigest()[:16]
