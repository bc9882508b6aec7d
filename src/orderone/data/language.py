"""Language modelling: predict the next token in pieces of a text from random places.

    pairs         (tokens s .. s + length - 1, tokens s + 1 .. s + length)
                  for a model that returns logits
    huggingface   {"input_ids": tokens, "labels": the same tokens}
                  for a model that shifts the labels

All tokens are in one tensor on the device; a batch is a lookup. The text is cut into sixteen equal
parts and the end of each is held out, so that training and evaluation text are of the same kind
even if the files are sorted. A data set with held-out files ("linux") is not cut: evaluation text
comes from these files alone.
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
from orderone.data.corpus import read_corpus, read_held_out
from orderone.data.devices import read_device
from orderone.data.draws import Draws
from orderone.data.encode import encode
from orderone.data.inputs import Cache, Device, Root, Text, Tokenizer, TokenNumbers
from orderone.data.order import spread
from orderone.data.task import EVALUATIONS, FORMATS, Batch

PARTS = 16
SHARE = 0.05  # of the text that is held out by default
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch has no minimum of these


def language(
    source: Text = "python",
    tokenizer: Tokenizer = "bytes",
    batch: Count = 16,
    length: Count = 128,
    *,
    held_out: Number | None = None,
    evaluations: Count = EVALUATIONS,
    format: Name = "pairs",
    vocab: Count | None = None,
    device: Device = None,
    root: Root = "data",
    cache: Cache = None,
) -> "Language":
    """Make a task: predict the next token of `source`.

    Args:
        source: "python" (the text of the standard library), "sotu", "gutenberg", "imdb" or "linux"
            (in `root`), a file, a folder of .txt files, a list of files, bytes, or a tensor of
            token numbers.
        tokenizer: "bytes", "gpt2" (`encoder.json` and `vocab.bpe` in `root`), the path of a
            `tokenizer.json`, or a folder with these files.
        batch: Number of pieces in a batch.
        length: Number of tokens in a piece.
        held_out: Part of the text that is held out for evaluation; by default 0.05, or the held-out
            files of "linux".
        evaluations: Largest number of held-out batches to use.
        format: "pairs" of inputs and targets, or "huggingface".
        vocab: Number of different tokens if `source` is a tensor; by default its largest + 1.
        device: Device that stores the tokens and makes the batches.
        root: Folder of data sets.
        cache: Folder for encoded text, by default `root/encoded`; False to store nothing.
    """
    held_tokens: Tensor | None = None
    if isinstance(source, Tensor):
        tokens, size = _check_tokens(source, vocab, "source")
    else:
        tokens, size = encode(read_corpus(source, root), tokenizer, root, cache)
        files = read_held_out(source, root) if held_out is None else None
        if files is not None:
            held_tokens = encode(files, tokenizer, root, cache)[0]
    return Language(
        tokens,
        size,
        batch,
        length,
        held_out=SHARE if held_out is None else held_out,
        held_tokens=held_tokens,
        evaluations=evaluations,
        format=format,
        device=device,
    )


class Language:
    """Language modelling as a task."""

    loss: None = None  # the default: cross entropy, or the loss that the model returns
    name: str
    vocab: int  # number of different tokens: rows of the model's embedding
    size: int  # pieces in a batch
    length: int
    format: str
    held_out: Tensor  # (pieces, tokens)
    device: torch.device

    def __init__(
        self,
        tokens: TokenNumbers,
        vocab: Count,
        batch: Count = 16,
        length: Count = 128,
        *,
        held_out: Number = SHARE,
        held_tokens: TokenNumbers | None = None,
        evaluations: Count = EVALUATIONS,
        format: Name = "pairs",
        device: Device = None,
    ):
        """Make the task; `held_tokens` is evaluation text beside `tokens`, of which none is cut."""
        tokens, self.vocab = _check_tokens(tokens, vocab, "tokens")
        self.size = count(batch, "batch")
        self.length = count(length, "length")
        self.format = one_of(format, FORMATS, "format")
        self._window = self.length + (self.format == "pairs")
        share = real(held_out, "held_out", least=0, most=0.9)
        split = f"{float(held_out)!r}"
        if held_tokens is None:
            training, held = _split(tokens, share, self._window)
        else:
            training = _split(tokens, 0.0, self._window)[0]
            held_tokens = _check_tokens(held_tokens, self.vocab, "held_tokens")[0]
            held = _whole_pieces(held_tokens, self._window)
            split = f"files {_hash(held_tokens)}"
        self.held_out = _spread(held, self.size, count(evaluations, "evaluations", least=0))
        self.device = read_device(device)
        self._tokens = {self.device: training.to(self.device)}
        numbers = f"{self.size}x{self.length} held out {split} {evaluations}"
        self.name = f"language {_hash(tokens)} {self.format} {numbers}"

    @property
    def tokens(self) -> Tensor:
        """Return the training tokens, from which batches are drawn."""
        return self._tokens[self.device]

    def with_batch_size(self, batch: Count) -> "Language":
        """Return the same task with batches of another size."""
        other = copy.copy(self)
        other.size = count(batch, "batch")
        other.name = f"{self.name}, batches of {other.size}"
        return other

    def batch(self, step: Count, seed: Count) -> Batch:
        """Return the batch of this step and seed."""
        return self._batch(self._pieces(step, [seed], self.device)[0])

    def stacked(self, step: Count, seeds: Sequence[int], device: Device = None) -> Batch:
        """Return the batches of all seeds, (seeds, batch, tokens)."""
        place = self.device if device is None else read_device(device)
        return self._batch(self._pieces(step, seeds, place))

    def evaluation(self) -> list[Batch]:
        """Return pieces of the held-out text, evenly spaced and without overlap."""
        batches = []
        for pieces in self.held_out.split(self.size):
            if len(pieces):
                batches.append(self._batch(pieces.to(self.device).long()))
        return batches

    def _pieces(self, step: int, seeds: Sequence[int], device: torch.device) -> Tensor:
        if device not in self._tokens:
            self._tokens[device] = self.tokens.to(device)
        tokens = self._tokens[device]
        draws = Draws(seeds, step, device)
        starts = draws.below(len(tokens) - self._window + 1, "starts", self.size)
        windows = tokens.unfold(0, self._window, 1)  # a view; twice as fast as indexing tokens
        pieces = windows.index_select(0, starts.flatten())
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
    """Return training tokens, and held-out pieces (pieces, window)."""
    held_tokens = int(held_out * len(tokens))
    parts = max(1, min(PARTS, held_tokens // window))
    training_parts: list[Tensor] = []
    held: list[Tensor] = []
    for section in tokens.tensor_split(parts):
        end = len(section) - held_tokens // parts
        training_parts.append(section[:end])
        pieces = (len(section) - end) // window
        held.append(section[end : end + pieces * window].view(-1, window))
    training = torch.cat(training_parts)
    if len(training) < window or (held_out and held_tokens < window):
        message = (
            f"source: expected at least one piece of {window} tokens for training and one for"
            f" evaluation; of {len(tokens)} tokens, held_out={held_out:g} leaves {len(training)}"
            f" for training and {held_tokens} for evaluation; pass more text or a smaller length"
        )
        raise InputError(message, "too-little-text", argument="source")
    return training, torch.cat(held)


def _whole_pieces(tokens: Tensor, window: int) -> Tensor:
    """Return all pieces (pieces, window) of held-out text; the rest at the end is left out."""
    pieces = len(tokens) // window
    if not pieces:
        message = (
            f"source: expected held-out text of at least one piece of {window} tokens, got"
            f" {len(tokens)}; pass a smaller length"
        )
        raise InputError(message, "too-little-text", argument="source")
    return tokens[: pieces * window].view(-1, window)


def _spread(pieces: Tensor, size: int, batches: int) -> Tensor:
    """Return at most `batches` whole batches of `size` pieces, evenly spaced.

    If there is no whole batch, return one smaller batch.
    """
    if len(pieces) < size:
        return pieces[: batches * size]
    return pieces[spread(len(pieces), min(len(pieces) // size, batches) * size)]


def _check_tokens(tokens: TokenNumbers, vocab: Count | None, argument: str) -> tuple[Tensor, int]:
    """Check a tensor of tokens; return it and the size of the vocabulary."""
    expected = (
        f"{argument}: expected a tensor of token numbers, 0 or more, of the shape (tokens,); got"
    )
    if not isinstance(tokens, Tensor):
        raise InputError(f"{expected} {type(tokens).__name__}", argument=argument)
    if tokens.dtype in UNSIGNED:
        tokens = tokens.long()
    whole = not (tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool)
    if tokens.dim() != 1 or not whole or not len(tokens) or tokens.min() < 0:
        if whole and tokens.numel():
            smallest = f" from {tokens.min()}"
        else:
            smallest = ""
        raise InputError(
            f"{expected} {tokens.dtype} of {tuple(tokens.shape)}{smallest}", argument=argument
        )
    least = int(tokens.max()) + 1
    return tokens, count(least if vocab is None else vocab, "vocab", least=least)


def _hash(tokens: Tensor) -> str:
    return sha256(tokens.cpu().numpy().tobytes() + str(tokens.dtype).encode()).hexdigest()[:16]
