"""Text from where people have it: the Python standard library, a data set's name, files, folders,
or bytes at hand.

Files are utf-8, or latin-1 where they are not; what comes out is utf-8, documents in the order of
their names, one after another.
"""

from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from orderone.data.missing import found_in
from orderone.data.reviews import read_reviews
from orderone.data.text import text

NAMED = {
    "sotu": "*.txt",
    "gutenberg": "*.txt",
    "imdb": "reviews.json",
}  # folders of the data root, what to read there
_WHOLE = 1 << 30
_SEPARATOR = b"\n\n"


def read_corpus(source: Any, root: Any = "data") -> bytes:
    """The text of `source`, never empty."""
    if isinstance(source, bytes | bytearray | memoryview):
        return _not_empty(bytes(source), "the bytes given")
    if isinstance(source, str) and source == "python":
        return text(_WHOLE)
    if isinstance(source, str) and source in NAMED:
        return _read_named(found_in(root, source, NAMED[source]), NAMED[source])
    if isinstance(source, str | PathLike):
        return read_files(_files(Path(fspath(source))))
    if (
        isinstance(source, Iterable)
        and (paths := list(source))
        and all(isinstance(p, str | PathLike) for p in paths)
    ):
        return read_files([path for given in paths for path in _files(Path(fspath(given)))])
    raise ValueError(
        f"source: expected 'python', {', '.join(map(repr, NAMED))}, a file, a folder, a list of"
        f" files, bytes, or a tensor of token numbers; got {type(source).__name__}"
        f" {str(source)[:60]!r}"
    )


def _read_named(folder: Path, what: str) -> bytes:
    if what.endswith(".txt"):
        return read_files(sorted(folder.glob(what)))
    return _not_empty(_SEPARATOR.join(read_reviews(folder / what)), f"the reviews in {folder}")


def read_files(paths: Iterable[Path]) -> bytes:
    paths = list(paths)
    return _not_empty(
        _SEPARATOR.join(as_utf8(path.read_bytes()) for path in paths),
        f"{paths[0]} and what follows it",
    )


def as_utf8(raw: bytes) -> bytes:
    """Itself if it is utf-8, otherwise read as latin-1, in which every byte is a letter; line ends
    become those of Unix."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        raw = raw.decode("latin-1").encode()
    return raw.replace(b"\r\n", b"\n")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise FileNotFoundError(
            f"source: expected a text file or a folder, and there is none at {path.absolute()};"
            f" known names are 'python', {', '.join(map(repr, NAMED))}"
        )
    found = sorted(
        p
        for p in path.rglob("*")
        if p.is_file() and not p.name.startswith(".") and p.suffix == ".txt"
    )
    if not found:
        raise FileNotFoundError(
            f"source: expected .txt files in {path.absolute()}, and there are none; give a list of"
            " the files"
        )
    return found


def _not_empty(found: bytes, where: str) -> bytes:
    if found:
        return found
    raise ValueError(f"source: expected text, and {where} hold none")
