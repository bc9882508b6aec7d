"""Text to token numbers: bytes, or byte pairs as GPT-2 joins them; encoded once, then kept beside
the data."""

import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderone.core.optional import need
from orderone.data.missing import found_in

_CHUNK = 1 << 12  # bytes encoded at once, at least; larger ones are slower
_LINE = re.compile(
    rb"(?<=[!-~])\n(?=[!-~])"
)  # a line end between letters is a token of its own, wherever the text is cut


def encode(
    text: bytes, tokenizer: Any = "bytes", root: Any = "data", cache: Any = None
) -> tuple[Tensor, int]:
    """Token numbers (uint8 or int32) and how many different ones there are."""
    if isinstance(tokenizer, str) and tokenizer == "bytes":
        return torch.frombuffer(bytearray(text), dtype=torch.uint8), 256
    tokens, _, vocab = encode_pieces(_chunks(text), tokenizer, root, cache)
    return tokens, vocab


def encode_pieces(
    pieces: Sequence[bytes], tokenizer: Any = "bytes", root: Any = "data", cache: Any = None
) -> tuple[Tensor, Tensor, int]:
    """Pieces of text one after another: token numbers, how many each piece has, and how many
    different ones there are."""
    if isinstance(tokenizer, str) and tokenizer == "bytes":
        tokens = torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8)
        return tokens, torch.tensor([len(piece) for piece in pieces]), 256
    coder = read_tokenizer(tokenizer, root)
    if cache is False:
        found = _encode(coder, pieces)
    else:
        if cache is None:
            folder = Path(fspath(root)) / "encoded"
        else:
            folder = Path(fspath(cache))
        found = _kept(
            folder / f"{_key(pieces, coder.to_str())}.safetensors", lambda: _encode(coder, pieces)
        )
    return found["tokens"], found["lengths"], coder.get_vocab_size()


def read_tokenizer(tokenizer: Any, root: Any = "data") -> Any:
    """A `tokenizers.Tokenizer` from its name, a folder of `encoder.json` and `vocab.bpe`, or a
    `tokenizer.json`."""
    tokenizers = need("tokenizers", "data", "for byte pairs")
    if isinstance(tokenizer, tokenizers.Tokenizer):
        return tokenizer
    if isinstance(tokenizer, str) and tokenizer == "gpt2":
        return _byte_level(tokenizers, found_in(root, "gpt2", "encoder.json", "vocab.bpe"))
    if isinstance(tokenizer, str | PathLike):
        path = Path(fspath(tokenizer))
        if path.is_file():
            return tokenizers.Tokenizer.from_file(str(path))
        if (path / "tokenizer.json").is_file():
            return tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        if path.is_dir():
            return _byte_level(tokenizers, found_in(path, "gpt2", "encoder.json", "vocab.bpe"))
    raise ValueError(
        "tokenizer: expected 'bytes', 'gpt2', a tokenizer.json, or a folder with encoder.json and"
        f" vocab.bpe; got {tokenizer!r}"
    )


def _byte_level(tokenizers: Any, folder: Path) -> Any:
    """GPT-2's own arrangement: no blank put in front, bytes joined in the order of `vocab.bpe`."""
    model = tokenizers.models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    coder = tokenizers.Tokenizer(model)
    coder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    coder.decoder = tokenizers.decoders.ByteLevel()
    return coder


def _encode(coder: Any, pieces: Sequence[bytes]) -> dict[str, Tensor]:
    ids = [
        part.ids
        for part in coder.encode_batch(
            [piece.decode(errors="replace") for piece in pieces], add_special_tokens=False
        )
    ]
    tokens = torch.tensor([token for part in ids for token in part], dtype=torch.int32)
    return {"tokens": tokens, "lengths": torch.tensor([len(part) for part in ids])}


def _chunks(text: bytes) -> list[bytes]:
    """Each ends after a line end beside which there are no blanks: cut there, the tokens stay the
    same."""
    chunks = []
    start = 0
    while start < len(text):
        found = _LINE.search(text, start + _CHUNK)
        end = found.end() if found else len(text)
        chunks.append(text[start:end])
        start = end
    return chunks


def _kept(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What the file holds, or what is made now and written there; where nothing can be written, it
    is made every time."""
    safetensors = need("safetensors", "data", "to keep what was encoded")
    files = need("safetensors.torch", "data", "to keep what was encoded")
    try:
        return files.load_file(path)
    except (OSError, safetensors.SafetensorError):
        found = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{torch.randint(1 << 40, ()).item()}.part")
        files.save_file(found, half)
        half.replace(path)
    except OSError:
        pass
    return found


def _key(pieces: Sequence[bytes], coder: str) -> str:
    digest = sha256(coder.encode())
    digest.update(b"".join(pieces))
    digest.update(",".join(str(len(piece)) for piece in pieces).encode())
    return digest.hexdigest()[:32]
