"""python -m orderone.gallery.subsets [DATA]: small files with parts of data sets, for machines that
get little.

    DATA/gallery/mnist.safetensors      12,000 images to train on, 2,000 held out        11 MB
    DATA/gallery/cifar10.safetensors    10,000 and 2,000                                 37 MB
    DATA/gallery/tokens.safetensors     Gutenberg and State of the Union, GPT-2's pairs  12 MB

Bytes as they are in the sets; which images is drawn once for all. Sentences are kept apart, so that
any length can be asked for. The sets themselves come from `python -m orderone.data.fetch`.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderone.core.errors import one_of
from orderone.core.optional import need
from orderone.data.corpus import read_corpus
from orderone.data.encode import encode_pieces
from orderone.data.sentences import Sentences, cut, pieces_of
from orderone.data.vision.arrays import Arrays
from orderone.data.vision.sets import SETS

SIZES = {"mnist": (12_000, 2_000), "cifar10": (10_000, 2_000)}  # to train on, and held out
CORPORA = ("gutenberg", "sotu")
TOKENS = "tokens"
_SEED = 0


def image_subset(name: str, root: Any = "data") -> tuple[Arrays, Arrays]:
    """Training and held-out images of "mnist" or "cifar10"."""
    kept = _read(root, one_of(name, SIZES, "subset"))
    train, held = (
        Arrays(kept[f"{part}.images"], kept[f"{part}.labels"].long()) for part in ("train", "held")
    )
    return train, held


def sentence_subset(longest: int, root: Any = "data") -> tuple[Sentences, int]:
    """Sentences of at most so many tokens, and how many different tokens there are."""
    kept = _read(root, TOKENS)
    tokens = kept["tokens"].int()
    lengths = kept["lengths"].long()
    return Sentences.of(tokens, cut(lengths, longest)), int(kept["vocab"])


def write(root: Any = "data") -> Iterable[Path]:
    """Makes all files from the whole sets in `root`."""
    for name in SIZES:
        yield _write(root, name, _images(name, root))
    yield _write(root, TOKENS, _tokens(root))


def _images(name: str, root: Any) -> dict[str, Tensor]:
    kept = {}
    generator = torch.Generator().manual_seed(_SEED)
    for part, arrays, size in zip(("train", "held"), SETS[name](root), SIZES[name], strict=True):
        chosen = arrays.part(torch.randperm(len(arrays), generator=generator)[:size])
        kept |= {f"{part}.images": chosen.images, f"{part}.labels": chosen.labels.to(torch.uint8)}
    return kept


def _tokens(root: Any) -> dict[str, Tensor]:
    pieces = [piece for name in CORPORA for piece in pieces_of(read_corpus(name, root))]
    tokens, lengths, vocab = encode_pieces(pieces, "gpt2", root, cache=False)
    sizes = lengths[lengths > 0].int()
    return {"tokens": tokens.to(torch.uint16), "lengths": sizes, "vocab": torch.tensor(vocab)}


def _path(root: Any, name: str) -> Path:
    return Path(root) / "gallery" / f"{name}.safetensors"


def _read(root: Any, name: str) -> dict[str, Tensor]:
    files = need("safetensors.torch", "data", "to read parts of data sets")
    path = _path(root, name)
    if path.is_file():
        return files.load_file(path)
    raise FileNotFoundError(
        f"{name}: expected {path.absolute()}, and it is not there; get it by `python -m"
        f" orderone.gallery.subsets {root}` from the sets in {root}, which `python -m"
        " orderone.data.fetch` brings"
    )


def _write(root: Any, name: str, kept: dict[str, Tensor]) -> Path:
    files = need("safetensors.torch", "data", "to write parts of data sets")
    path = _path(root, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".half")
    files.save_file(kept, half)
    return half.replace(path)


if __name__ == "__main__":
    for written in write(*sys.argv[1:2]):
        print(f"{written}: {written.stat().st_size / 1e6:.1f} MB")
