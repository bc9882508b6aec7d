"""Span denoising, S2 II.2.A: sentences are permuted, spans of them masked, and the text is to be
given as it was.

    source    [start] corrupted text [end] [pad] ...       what the encoder reads
    target    [start] text [pad] ...                       what the decoder reads
    labels    text [end] -100 ...                          what it shall give; -100 does not count

    pairs         ({"source", "target", "source_mask"}, labels): `orderone.nn.EncoderDecoder`
    huggingface   {"input_ids", "attention_mask", "decoder_input_ids", "labels"}

A sample starts at a sentence and holds as many whole ones as fit. Held-out samples are corrupted in
the same way, always alike. The four special tokens follow those of the text.
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
from orderone.data.corruption import corrupt
from orderone.data.devices import read_device
from orderone.data.draws import Draws
from orderone.data.sentences import Sentences, read_sentences
from orderone.data.task import EVALUATIONS, FORMATS, Batch

SPECIAL = ("start", "end", "pad", "mask")
_IGNORED = -100  # what cross entropy leaves out


def denoising(
    source: Any = "python",
    tokenizer: Any = "bytes",
    batch: Count = 16,
    length: Count = 512,
    *,
    ratio: Number = 0.3,
    span: Number = 3.0,
    held_out: Number = 0.05,
    evaluations: Count = EVALUATIONS,
    format: Name = "pairs",
    device: Any = None,
    root: Any = "data",
    cache: Any = None,
) -> "Denoising":
    """A task: restore a text of at most `length` tokens of which `ratio` is masked, in spans of
    mean length `span`.

    Source, tokenizer and cache are those of `language`. The model needs `task.vocab` words and
    `length + 2` positions.
    """
    length = count(length, "length", least=4)
    sentences, vocab = read_sentences(read_corpus(source, root), tokenizer, length, root, cache)
    return Denoising(
        sentences,
        vocab,
        batch,
        length,
        ratio=ratio,
        span=span,
        held_out=held_out,
        evaluations=evaluations,
        format=format,
        device=device,
    )


class Denoising:
    """`vocab` counts the tokens of the text and the special ones, whose numbers are `start`, `end`,
    `pad` and `mask`."""

    loss = None  # cross entropy, which leaves the padding out

    def __init__(
        self,
        sentences: Sentences,
        vocab: Count,
        batch: Count,
        length: Count,
        *,
        ratio: Number = 0.3,
        span: Number = 3.0,
        held_out: Number = 0.05,
        evaluations: Count = EVALUATIONS,
        format: Name = "pairs",
        device: Any = None,
    ):
        self.start, self.end, self.pad, self.mask = (vocab + i for i in range(len(SPECIAL)))
        self.vocab = vocab + len(SPECIAL)
        self.size = count(batch, "batch")
        self.length = length
        self.ratio = real(ratio, "ratio", above=0, most=0.9)
        self.span = real(span, "span", above=0, most=10)
        self.evaluations = count(evaluations, "evaluations", least=0)
        self.format = one_of(format, FORMATS, "format")
        self.device = read_device(device)
        held_out = real(held_out, "held_out", least=0, most=0.9)
        self.train, self.held = sentences.split(held_out)
        if not len(self.train) or (held_out and not len(self.held)):
            raise ValueError(
                f"source: expected sentences to train on and to hold out, got {len(sentences)}, of"
                f" which held_out={held_out:g} leaves {len(self.train)} and {len(self.held)}; give"
                " more text"
            )
        self._there: dict[tuple[str, torch.device], Sentences] = {}
        numbers = (
            f"{self.size}x{length} {self.ratio!r} {self.span!r} held out {held_out!r}"
            f" {self.evaluations}"
        )
        self.name = f"denoising {_hash(sentences)} {self.format} {numbers}"

    def batch(self, step: Count, seed: Count) -> Batch:
        return self._batch(
            {name: x[0] for name, x in self._parts(step, [seed], self.device).items()}
        )

    def stacked(self, step: Count, seeds: Sequence[int], device: Any = None) -> Batch:
        return self._batch(
            self._parts(step, seeds, self.device if device is None else read_device(device))
        )

    def evaluation(self) -> list[Batch]:
        if not len(self.held):
            return []
        rows = [self._parts(step, [0], self.device, "held") for step in range(self.evaluations)]
        return [self._batch({name: x[0] for name, x in parts.items()}) for parts in rows]

    def _parts(
        self, step: int, seeds: Sequence[int], device: torch.device, which: str = "train"
    ) -> dict[str, Tensor]:
        """Source, target, source_mask and labels, each (seeds, batch, tokens)."""
        if (which, device) not in self._there:
            self._there[which, device] = getattr(self, which).to(device)
        draws = Draws(seeds, step, device)
        tokens, sentence, length = _samples(
            self._there[which, device], draws, self.size, self.length
        )
        corrupted, now = corrupt(tokens, sentence, length, draws, self.ratio, self.span, self.mask)
        source = self._framed(corrupted, now)
        text = self._framed(tokens, length)
        labels = text[:, 1:].masked_fill(text[:, 1:] == self.pad, _IGNORED)
        target = text[:, :-1].masked_fill(text[:, :-1] == self.end, self.pad)
        found = {
            "source": source,
            "target": target,
            "source_mask": source != self.pad,
            "labels": labels,
        }
        return {name: x.view(len(seeds), self.size, -1) for name, x in found.items()}

    def _framed(self, tokens: Tensor, length: Tensor) -> Tensor:
        """[start] tokens [end] [pad] ..., (n, L + 2)."""
        framed = torch.nn.functional.pad(tokens, (1, 1), value=self.pad)
        framed[:, 0] = self.start
        places = torch.arange(framed.shape[1], device=tokens.device)
        framed = framed.masked_fill(places > length[:, None], self.pad)
        return framed.masked_fill(places == length[:, None] + 1, self.end)

    def _batch(self, parts: dict[str, Tensor]) -> Batch:
        if self.format == "pairs":
            return {name: parts[name] for name in ("source", "target", "source_mask")}, parts[
                "labels"
            ]
        names = {
            "input_ids": "source",
            "attention_mask": "source_mask",
            "decoder_input_ids": "target",
            "labels": "labels",
        }
        return {theirs: parts[ours] for theirs, ours in names.items()} | {
            "attention_mask": parts["source_mask"].long()
        }

    def __repr__(self) -> str:
        return (
            f"Denoising({len(self.train):,} sentences, {len(self.train.tokens):,} tokens of"
            f" {self.vocab}, {len(self.held):,} sentences held out, batches of {self.size} x"
            f" {self.length}, {self.format})"
        )


def _samples(
    sentences: Sentences, draws: Draws, batch: int, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Whole sentences from random places: tokens (n, length), each one's sentence counted in the
    sample, and how many tokens there are."""
    starts = sentences.starts
    first = draws.below(len(sentences), "first", batch).flatten()
    begin = starts[first]
    last = (
        torch.searchsorted(starts, begin + length, right=True) - 1
    )  # as many whole sentences as fit
    number = starts[last] - begin
    places = begin[:, None] + torch.arange(length, device=begin.device)
    places = places.clamp_max(len(sentences.tokens) - 1)
    sentence = torch.searchsorted(starts, places, right=True) - 1 - first[:, None]
    return sentences.tokens[places].long(), sentence.clamp_max(length - 1), number


def _hash(sentences: Sentences) -> str:
    digest = sha256(sentences.tokens.numpy().tobytes())
    digest.update(sentences.starts.numpy().tobytes())
    return digest.hexdigest()[:16]
