"""Encode text as token numbers: bytes, or byte pairs as in GPT-2.

Text is encoded once; the tokens are stored beside the data.
"""

import re
from collections.abc import Callable, Sequence
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.core.optional import need
from orderone.data.inputs import Cache, LoadedTokenizer, Root, Tokenizer
from orderone.data.missing import find_folder

_CHUNK = 1 << 12  # least number of bytes encoded at once; larger chunks are slower
# A line end between visible characters is a separate token, so cutting there changes no token.
_LINE = re.compile(rb"(?<=[!-~])\n(?=[!-~])")


def encode(
    text: bytes, tokenizer: Tokenizer = "bytes", root: Root = "data", cache: Cache = None
) -> tuple[Tensor, int]:
    """Return token numbers (uint8 or int32) and the size of the vocabulary."""
    if isinstance(tokenizer, str) and tokenizer == "bytes":
        return torch.frombuffer(bytearray(text), dtype=torch.uint8), 256
    tokens, _, vocab = encode_pieces(_chunks(text), tokenizer, root, cache)
    return tokens, vocab


def encode_pieces(
    pieces: Sequence[bytes],
    tokenizer: Tokenizer = "bytes",
    root: Root = "data",
    cache: Cache = None,
) -> tuple[Tensor, Tensor, int]:
    """Encode pieces of text separately.

    Return token numbers, the number of tokens of each piece, and the size of the vocabulary.
    """
    if isinstance(tokenizer, str) and tokenizer == "bytes":
        tokens = torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8)
        return tokens, torch.tensor([len(piece) for piece in pieces]), 256
    coder = read_tokenizer(tokenizer, root)
    if cache is False:
        tensors = _encode(coder, pieces)
    else:
        if cache is None:
            folder = Path(fspath(root)) / "encoded"
        else:
            folder = Path(fspath(cache))  # type: ignore[arg-type]  # fspath raises for other types
        path = folder / f"{_key(pieces, coder.to_str())}.safetensors"
        tensors = _load_or_make(path, lambda: _encode(coder, pieces))
    return tensors["tokens"], tensors["lengths"], coder.get_vocab_size()


def read_tokenizer(tokenizer: Tokenizer, root: Root = "data") -> LoadedTokenizer:
    """Return a `tokenizers.Tokenizer`.

    `tokenizer` is a name, a folder with `encoder.json` and `vocab.bpe`, or a `tokenizer.json`.
    """
    tokenizers = need("tokenizers", "data", "for byte pairs")
    if isinstance(tokenizer, tokenizers.Tokenizer):
        return tokenizer  # type: ignore[return-value]  # the module is loaded by name
    if isinstance(tokenizer, str) and tokenizer == "gpt2":
        return _byte_level(tokenizers, find_folder(root, "gpt2", "encoder.json", "vocab.bpe"))
    if isinstance(tokenizer, str | PathLike):
        path = Path(fspath(tokenizer))
        if path.is_file():
            return tokenizers.Tokenizer.from_file(str(path))
        if (path / "tokenizer.json").is_file():
            return tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
        if path.is_dir():
            return _byte_level(tokenizers, find_folder(path, "gpt2", "encoder.json", "vocab.bpe"))
    message = (
        "tokenizer: expected 'bytes', 'gpt2', a tokenizer.json, or a folder with encoder.json and"
        f" vocab.bpe; got {tokenizer!r}"
    )
    raise InputError(message, argument="tokenizer")


def _byte_level(tokenizers: ModuleType, folder: Path) -> LoadedTokenizer:
    """Return the tokenizer of GPT-2.

    No space is added in front; byte pairs are merged in the order of `vocab.bpe`.
    """
    model = tokenizers.models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    coder = tokenizers.Tokenizer(model)
    coder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    coder.decoder = tokenizers.decoders.ByteLevel()
    return coder


def _encode(coder: LoadedTokenizer, pieces: Sequence[bytes]) -> dict[str, Tensor]:
    texts = [piece.decode(errors="replace") for piece in pieces]
    tokens: list[int] = []
    lengths: list[int] = []
    for encoding in coder.encode_batch(texts, add_special_tokens=False):
        tokens += encoding.ids
        lengths.append(len(encoding.ids))
    return {
        "tokens": torch.tensor(tokens, dtype=torch.int32),
        "lengths": torch.tensor(lengths),
    }


def _chunks(text: bytes) -> list[bytes]:
    """Cut the text after line ends without spaces beside them, which changes no token."""
    chunks = []
    start = 0
    while start < len(text):
        line_end = _LINE.search(text, start + _CHUNK)
        if line_end:
            end = line_end.end()
        else:
            end = len(text)
        chunks.append(text[start:end])
        start = end
    return chunks


def _load_or_make(path: Path, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Load the tensors from the file, or make them and write the file.

    If the file cannot be written, the tensors are made at every call.
    """
    safetensors = need("safetensors", "data", "to store encoded text")
    files = need("safetensors.torch", "data", "to store encoded text")
    try:
        return files.load_file(path)
    except (OSError, safetensors.SafetensorError):
        tensors = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{torch.randint(1 << 40, ()).item()}.part")
        files.save_file(tensors, half)
        half.replace(path)
    except OSError:
        pass
    return tensors


def _key(pieces: Sequence[bytes], coder: str) -> str:
    digest = sha256(coder.encode())
    digest.update(b"".join(pieces))
    lengths = [str(len(piece)) for piece in pieces]
    digest.update(",".join(lengths).encode())
    return digest.hexdigest()[:32]
