"""Read text: the Python standard library, a data set by name, files, folders, or bytes.

The data set "linux" has held-out files of its own (`read_held_out`).

Files are read as utf-8, or as latin-1 if they are not valid utf-8. The result is utf-8: all
documents in the order of their names.
"""

from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path

from orderone.core.errors import InputError
from orderone.data import linux
from orderone.data.inputs import Root, Text
from orderone.data.missing import MissingDataError, find_folder
from orderone.data.reviews import read_reviews
from orderone.data.text import text

NAMED = {  # folder in `root` -> files to read there
    "sotu": "*.txt",
    "gutenberg": "*.txt",
    "imdb": "reviews.json",
    "linux": linux.TRAINING_FILE,
}
HELD_OUT = {"linux": linux.HELD_OUT_FILE}  # files that are held out
_WHOLE = 1 << 30
_SEPARATOR = b"\n\n"


def read_corpus(source: Text, root: Root = "data") -> bytes:
    """Return the text of `source`, never empty."""
    if isinstance(source, bytes | bytearray | memoryview):
        return _not_empty(bytes(source), "these bytes")
    if isinstance(source, str) and source == "python":
        return text(_WHOLE)
    if isinstance(source, str) and source in NAMED:
        return _read_named(find_folder(root, source, NAMED[source]), NAMED[source])
    if isinstance(source, str | PathLike):
        return read_files(_files(Path(fspath(source))))
    if isinstance(source, Iterable):
        entries = list(source)
        paths = [path for path in entries if isinstance(path, str | PathLike)]
        if paths and len(paths) == len(entries):
            files: list[Path] = []
            for path in paths:
                files += _files(Path(fspath(path)))
            return read_files(files)
    message = (
        f"source: expected 'python', {', '.join(map(repr, NAMED))}, a file, a folder, a list of"
        f" files, bytes, or a tensor of token numbers; got {type(source).__name__}"
        f" {str(source)[:60]!r}"
    )
    raise InputError(message, "wrong-type", argument="source")


def read_held_out(source: Text, root: Root = "data") -> bytes | None:
    """Return the text of the files that a data set holds out; None if it holds out none."""
    if not isinstance(source, str) or source not in HELD_OUT:
        return None
    return _read_named(find_folder(root, source, HELD_OUT[source]), HELD_OUT[source])


def _read_named(folder: Path, pattern: str) -> bytes:
    if pattern.endswith(".txt"):
        return read_files(sorted(folder.glob(pattern)))
    if pattern.endswith(".xz"):
        return linux.read(folder / pattern)
    return _not_empty(_SEPARATOR.join(read_reviews(folder / pattern)), f"the reviews in {folder}")


def read_files(paths: Iterable[Path]) -> bytes:
    """Return the text of all files, in this order."""
    paths = list(paths)
    documents = [as_utf8(path.read_bytes()) for path in paths]
    return _not_empty(_SEPARATOR.join(documents), f"the {len(paths)} files from {paths[0]} on")


def as_utf8(raw: bytes) -> bytes:
    """Return the text in utf-8 with Unix line ends.

    Text that is not valid utf-8 is read as latin-1, in which every byte is a character.
    """
    try:
        raw.decode()
    except UnicodeDecodeError:
        raw = raw.decode("latin-1").encode()
    return raw.replace(b"\r\n", b"\n")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        message = (
            f"source: expected a text file or a folder; {path.absolute()} does not exist; known"
            f" names are 'python', {', '.join(map(repr, NAMED))}"
        )
        raise MissingDataError(message, "missing-data", argument="source")
    texts = []
    for file in sorted(path.rglob("*.txt")):
        if file.is_file() and not file.name.startswith("."):
            texts.append(file)
    if not texts:
        message = (
            f"source: expected .txt files in {path.absolute()}, found none; pass a list of the"
            " files to read"
        )
        raise MissingDataError(message, "missing-data", argument="source")
    return texts


def _not_empty(text: bytes, where: str) -> bytes:
    if text:
        return text
    raise InputError(f"source: expected text; {where} are empty", argument="source")
