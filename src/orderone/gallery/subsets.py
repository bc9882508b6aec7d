"""python -m orderone.gallery.subsets [DATA]: write small files with parts of data sets, for
machines with little disk space.

    DATA/gallery/mnist.safetensors      12,000 training and 2,000 held-out images        11 MB
    DATA/gallery/cifar10.safetensors    10,000 and 2,000                                 37 MB
    DATA/gallery/tokens.safetensors     Gutenberg and State of the Union, GPT-2's tokens 12 MB

Images are unchanged bytes; a fixed seed selects them. Sentences are stored with their lengths, so
that they can be cut to any length. `python -m orderone.data.fetch` downloads the data sets.
"""

import sys
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from orderone.core.errors import one_of
from orderone.core.optional import need
from orderone.data.corpus import read_corpus
from orderone.data.encode import encode_pieces
from orderone.data.missing import MissingDataError
from orderone.data.sentences import Sentences, cut, pieces_of
from orderone.data.vision.arrays import Arrays
from orderone.data.vision.sets import SETS

Folder: TypeAlias = str | PathLike[str]
SIZES = {"mnist": (12_000, 2_000), "cifar10": (10_000, 2_000)}  # training, held out
CORPORA = ("gutenberg", "sotu")
TOKENS = "tokens"
_SEED = 0


def image_subset(name: str, root: Folder = "data") -> tuple[Arrays, Arrays]:
    """Return training and held-out images of "mnist" or "cifar10"."""
    tensors = _read(root, one_of(name, SIZES, "subset"))
    train = Arrays(tensors["train.images"], tensors["train.labels"].long())
    held = Arrays(tensors["held.images"], tensors["held.labels"].long())
    return train, held


def sentence_subset(longest: int, root: Folder = "data") -> tuple[Sentences, int]:
    """Return sentences of at most `longest` tokens, and the number of different tokens."""
    tensors = _read(root, TOKENS)
    tokens = tensors["tokens"].int()
    lengths = tensors["lengths"].long()
    return Sentences.of(tokens, cut(lengths, longest)), int(tensors["vocab"])


def write(root: Folder = "data") -> Iterable[Path]:
    """Write all files from the complete data sets in `root`; yield their paths."""
    for name in SIZES:
        yield _write(root, name, _images(name, root))
    yield _write(root, TOKENS, _tokens(root))


def _images(name: str, root: Folder) -> dict[str, Tensor]:
    tensors = {}
    generator = torch.Generator().manual_seed(_SEED)
    for part, arrays, size in zip(("train", "held"), SETS[name](root), SIZES[name], strict=True):
        chosen = arrays.part(torch.randperm(len(arrays), generator=generator)[:size])
        tensors[f"{part}.images"] = chosen.images
        tensors[f"{part}.labels"] = chosen.labels.to(torch.uint8)
    return tensors


def _tokens(root: Folder) -> dict[str, Tensor]:
    pieces = []
    for name in CORPORA:
        pieces += pieces_of(read_corpus(name, root))
    tokens, lengths, vocab = encode_pieces(pieces, "gpt2", root, cache=False)
    sizes = lengths[lengths > 0].int()
    return {"tokens": tokens.to(torch.uint16), "lengths": sizes, "vocab": torch.tensor(vocab)}


def _path(root: Folder, name: str) -> Path:
    return Path(root) / "gallery" / f"{name}.safetensors"


def _read(root: Folder, name: str) -> dict[str, Tensor]:
    files = need("safetensors.torch", "data", "to read parts of data sets")
    path = _path(root, name)
    if path.is_file():
        return files.load_file(path)
    message = (
        f"{name}: expected {path.absolute()}, which does not exist; download the data sets with"
        f" `python -m orderone.data.fetch --root {root}`, then run `python -m"
        f" orderone.gallery.subsets {root}`"
    )
    raise MissingDataError(message, "missing-data", argument="root")


def _write(root: Folder, name: str, tensors: dict[str, Tensor]) -> Path:
    files = need("safetensors.torch", "data", "to write parts of data sets")
    path = _path(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".half")
    files.save_file(tensors, half)
    return half.replace(path)


def main() -> None:
    """Write the files and print their sizes."""
    for path in write(*sys.argv[1:2]):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
