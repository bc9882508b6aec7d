"""Text to token numbers: bytes, or byte pairs as GPT-2 joins them; encoded once, then kept beside the data."""

from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderone.data.missing import found_in

_CHUNK = 1 << 20  # letters encoded at once; cut at line ends, across which GPT-2 joins nothing but blanks


def encode(text: bytes, tokenizer: Any = "bytes", root: Any = "data", cache: Any = None) -> tuple[Tensor, int]:
    """Token numbers (uint8 or int32) and how many different ones there are."""
    if isinstance(tokenizer, str) and tokenizer == "bytes":
        return torch.frombuffer(bytearray(text), dtype=torch.uint8), 256
    coder = read_tokenizer(tokenizer, root)
    size = coder.get_vocab_size()
    if cache is False:
        return _encode(coder, text), size
    folder = Path(fspath(root if cache is None else cache)) / ("encoded" if cache is None else "")
    return _kept(folder / f"{_key(text, coder.to_str())}.safetensors", lambda: _encode(coder, text)), size


def read_tokenizer(tokenizer: Any, root: Any = "data") -> Any:
    """A `tokenizers.Tokenizer` from its name, a folder of `encoder.json` and `vocab.bpe`, or a `tokenizer.json`."""
    tokenizers = _tokenizers()
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
        return _byte_level(tokenizers, found_in(path, "gpt2", "encoder.json", "vocab.bpe"))
    raise ValueError(
        f"tokenizer: expected 'bytes', 'gpt2', a tokenizer.json, or a folder with encoder.json and vocab.bpe; got "
        f"{tokenizer!r}"
    )


def _byte_level(tokenizers: Any, folder: Path) -> Any:
    """GPT-2's own arrangement: no blank put in front, bytes joined in the order of `vocab.bpe`."""
    model = tokenizers.models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    coder = tokenizers.Tokenizer(model)
    coder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    coder.decoder = tokenizers.decoders.ByteLevel()
    return coder


def _encode(coder: Any, text: bytes) -> Tensor:
    found = coder.encode_batch(_chunks(text.decode(errors="replace")), add_special_tokens=False)
    return torch.cat([torch.tensor(part.ids, dtype=torch.int32) for part in found])


def _chunks(text: str) -> list[str]:
    """Each ends after a line end that a letter follows, so that no run of blanks is cut."""
    chunks, start = [], 0
    while start < len(text):
        end = min(start + _CHUNK, len(text))
        while end < len(text) and not (text[end - 1] == "\n" and not text[end].isspace()):
            end += 1
        chunks.append(text[start:end])
        start = end
    return chunks


def _kept(path: Path, make: Any) -> Tensor:
    """What the file holds, or what is made now and written there; where nothing can be written, it is made every time."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    try:
        return load_file(path)["tokens"]
    except (OSError, SafetensorError, KeyError):
        tokens = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{torch.randint(1 << 40, ()).item()}.part")
        save_file({"tokens": tokens}, half)
        half.replace(path)
    except OSError:
        pass
    return tokens


def _key(text: bytes, coder: str) -> str:
    return sha256(sha256(text).digest() + sha256(coder.encode()).digest()).hexdigest()[:32]


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError("tokenizers is needed for byte pairs; pip install 'orderone[data]'") from error
    return tokenizers
