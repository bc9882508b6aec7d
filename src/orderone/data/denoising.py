"""Span denoising: restore a text whose sentences were permuted and whose spans were masked.

This is the task of section II.2.A of the paper "Effective Theory of Transformers at
Initialization" (S2).

    source    [start] corrupted text [end] [pad] ...       input of the encoder
    target    [start] text [pad] ...                       input of the decoder
    labels    text [end] -100 ...                          expected output; -100 is ignored

    pairs         ({"source", "target", "source_mask"}, labels): `orderone.nn.EncoderDecoder`
    huggingface   {"input_ids", "attention_mask", "decoder_input_ids", "labels"}

A sample starts at a sentence and has as many whole sentences as fit. Held-out samples are corrupted
too, identically at every call. The four special tokens come after those of the text.
"""

import copy
from collections.abc import Sequence
from hashlib import sha256

import torch
from torch import Tensor

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.data.corpus import read_corpus
from orderone.data.corruption import corrupt
from orderone.data.devices import read_device
from orderone.data.draws import Draws
from orderone.data.inputs import Cache, Device, Root, Text, Tokenizer
from orderone.data.sentences import Sentences, read_sentences
from orderone.data.task import EVALUATIONS, FORMATS, Batch

SPECIAL = ("start", "end", "pad", "mask")
HUGGING_FACE = {  # parts of a batch: name in Hugging Face -> name here
    "input_ids": "source",
    "attention_mask": "source_mask",
    "decoder_input_ids": "target",
    "labels": "labels",
}
_IGNORED = -100  # the label that cross entropy ignores


def denoising(
    source: Text = "python",
    tokenizer: Tokenizer = "bytes",
    batch: Count = 16,
    length: Count = 512,
    *,
    ratio: Number = 0.3,
    span: Number = 3.0,
    held_out: Number = 0.05,
    evaluations: Count = EVALUATIONS,
    format: Name = "pairs",
    device: Device = None,
    root: Root = "data",
    cache: Cache = None,
) -> "Denoising":
    """Make a task: restore a text of at most `length` tokens, of which the part `ratio` is masked.

    Masked spans have the mean length `span`. `source`, `tokenizer` and `cache` are as in
    `language`. The model needs `task.vocab` token numbers and `length + 2` positions.
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
    """Span denoising as a task.

    `vocab` is the number of different tokens, including the special tokens `start`, `end`, `pad`
    and `mask`.
    """

    loss: None = None  # the default, cross entropy; it ignores padding
    name: str
    vocab: int
    start: int
    end: int
    pad: int
    mask: int
    size: int  # of a batch
    length: int
    ratio: float
    span: float
    evaluations: int
    format: str
    device: torch.device
    train: Sentences
    held: Sentences

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
        device: Device = None,
    ):
        self.start = vocab
        self.end = vocab + 1
        self.pad = vocab + 2
        self.mask = vocab + 3
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
            message = (
                "source: expected sentences for training and for evaluation; of"
                f" {len(sentences)}, held_out={held_out:g} leaves {len(self.train)} for training"
                f" and {len(self.held)} for evaluation; pass more text"
            )
            raise InputError(message, "too-little-text", argument="source")
        self._copies: dict[tuple[str, torch.device], Sentences] = {}
        numbers = (
            f"{self.size}x{length} {self.ratio!r} {self.span!r} held out {held_out!r}"
            f" {self.evaluations}"
        )
        self.name = f"denoising {_hash(sentences)} {self.format} {numbers}"

    def with_batch_size(self, batch: Count) -> "Denoising":
        """Return the same task with batches of another size."""
        other = copy.copy(self)
        other.size = count(batch, "batch")
        other.name = f"{self.name}, batches of {other.size}"
        return other

    def batch(self, step: Count, seed: Count) -> Batch:
        """Return the batch of this step and seed."""
        return self._batch(_first(self._parts(step, [seed], self.device, "train")))

    def stacked(self, step: Count, seeds: Sequence[int], device: Device = None) -> Batch:
        """Return the batches of all seeds, (seeds, batch, tokens)."""
        if device is None:
            place = self.device
        else:
            place = read_device(device)
        return self._batch(self._parts(step, seeds, place, "train"))

    def evaluation(self) -> list[Batch]:
        """Return batches of held-out sentences."""
        if not len(self.held):
            return []
        batches = []
        for step in range(self.evaluations):
            parts = self._parts(step, [0], self.device, "held")
            batches.append(self._batch(_first(parts)))
        return batches

    def _parts(
        self, step: int, seeds: Sequence[int], device: torch.device, split: str
    ) -> dict[str, Tensor]:
        """Return source, target, source_mask and labels, each (seeds, batch, tokens)."""
        sentences = self._on(device, split)
        draws = Draws(seeds, step, device)
        tokens, sentence, length = _samples(sentences, draws, self.size, self.length)
        corrupted, corrupted_length = corrupt(
            tokens, sentence, length, draws, self.ratio, self.span, self.mask
        )
        source = self._framed(corrupted, corrupted_length)
        text = self._framed(tokens, length)
        labels = text[:, 1:].masked_fill(text[:, 1:] == self.pad, _IGNORED)
        target = text[:, :-1].masked_fill(text[:, :-1] == self.end, self.pad)
        shape = (len(seeds), self.size, -1)
        return {
            "source": source.view(shape),
            "target": target.view(shape),
            "source_mask": (source != self.pad).view(shape),
            "labels": labels.view(shape),
        }

    def _on(self, device: torch.device, split: str) -> Sentences:
        """Return the sentences of "train" or "held", copied to the device once."""
        if (split, device) not in self._copies:
            if split == "train":
                sentences = self.train
            else:
                sentences = self.held
            self._copies[split, device] = sentences.to(device)
        return self._copies[split, device]

    def _framed(self, tokens: Tensor, length: Tensor) -> Tensor:
        """Return [start] tokens [end] [pad] ..., (n, L + 2)."""
        framed = torch.nn.functional.pad(tokens, (1, 1), value=self.pad)
        framed[:, 0] = self.start
        places = torch.arange(framed.shape[1], device=tokens.device)
        framed = framed.masked_fill(places > length[:, None], self.pad)
        return framed.masked_fill(places == length[:, None] + 1, self.end)

    def _batch(self, parts: dict[str, Tensor]) -> Batch:
        if self.format == "pairs":
            inputs = {name: parts[name] for name in ("source", "target", "source_mask")}
            return inputs, parts["labels"]
        batch = {name: parts[part] for name, part in HUGGING_FACE.items()}
        batch["attention_mask"] = batch["attention_mask"].long()
        return batch

    def __repr__(self) -> str:
        return (
            f"Denoising({len(self.train):,} sentences, {len(self.train.tokens):,} tokens of"
            f" {self.vocab}, {len(self.held):,} sentences held out, batches of {self.size} x"
            f" {self.length}, {self.format})"
        )


def _first(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the parts of the first seed."""
    return {name: part[0] for name, part in parts.items()}


def _samples(
    sentences: Sentences, draws: Draws, batch: int, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw samples of whole sentences that start at random sentences.

    Return tokens (n, length), the number of each token's sentence within its sample, and the number
    of tokens of each sample.
    """
    starts = sentences.starts
    first = draws.below(len(sentences), "first", batch).flatten()
    begin = starts[first]
    last = torch.searchsorted(starts, begin + length, right=True) - 1
    number = starts[last] - begin
    places = begin[:, None] + torch.arange(length, device=begin.device)
    places = places.clamp_max(len(sentences.tokens) - 1)
    sentence = torch.searchsorted(starts, places, right=True) - 1 - first[:, None]
    return sentences.tokens[places].long(), sentence.clamp_max(length - 1), number


def _hash(sentences: Sentences) -> str:
    digest = sha256(sentences.tokens.numpy().tobytes())
    digest.update(sentences.starts.numpy().tobytes())
    return digest.hexdigest()[:16]
