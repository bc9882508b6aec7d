"""The text of the Python standard library as bytes: real text without a download.

It is the same on all machines with the same version of Python. Files are read until there is enough
text.
"""

import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Count
from orderone.data.missing import MissingDataError

VOCABULARY = 256  # a token is a byte
ENOUGH = 1 << 20  # bytes to draw batches from
# tests and demos are repetitive; installed packages and generated files differ between machines
_SKIPPED = {
    "test",
    "tests",
    "idle_test",
    "idlelib",
    "turtledemo",
    "pydoc_data",
    "site-packages",
    "dist-packages",
}
_GENERATED = ("_sysconfigdata", "config-", "__pycache__")


def text(size: Count = ENOUGH) -> bytes:
    """Return the first `size` bytes (or fewer, if there are fewer), in the order of file names."""
    return _text(count(size, "size"))


@lru_cache(maxsize=4)
def _text(size: int) -> bytes:
    folder = Path(sysconfig.get_path("stdlib"))
    content = bytearray()
    for path in _files(folder):
        content += path.read_bytes().replace(b"\r\n", b"\n")
        if len(content) >= size:
            break
    if not content:
        message = (
            f"text: expected the .py files of the Python standard library in {folder}, found none"
            " (zipped or frozen Python?); pass another text"
        )
        raise MissingDataError(message, "missing-data")
    return bytes(content[:size])


def text_batch(seed: Count = 0, batch: Count = 16, length: Count = 64) -> Tensor:
    """Return bytes (batch, length) as token numbers: pieces of the text from random places."""
    return text_batches(1, seed, batch, length)[0]


def text_batches(n: Count, seed: Count = 0, batch: Count = 16, length: Count = 64) -> list[Tensor]:
    """Return `n` different batches; the first is `text_batch(seed)`."""
    n = count(n, "n")
    batch = count(batch, "batch")
    length = count(length, "length")
    source = torch.frombuffer(bytearray(text()), dtype=torch.uint8)
    if length > len(source):
        message = f"length: expected at most {len(source)}, the size of the text; got {length}"
        raise InputError(message, argument="length")
    generator = torch.Generator().manual_seed(count(seed, "seed", least=0))
    places = torch.arange(length)
    batches = []
    for _ in range(n):
        starts = torch.randint(len(source) - length + 1, (batch, 1), generator=generator)
        batches.append(source[starts + places].long())
    return batches


def _files(folder: Path) -> Iterator[Path]:
    """Yield the .py files of a folder, then those of its subfolders.

    Folders are listed one at a time, so that no folder is listed in vain.
    """
    if not folder.is_dir():
        return
    entries = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.name not in _SKIPPED and not path.name.startswith(_GENERATED):
            entries.append(path)
    for path in entries:
        if path.suffix == ".py" and path.is_file():
            yield path
    for path in entries:
        if path.is_dir():
            yield from _files(path)
