"""Read text: the Python standard library, a data set by name, files, folders, or bytes.

Files are utf-8, or latin-1 where they are not; what comes out is utf-8, documents in the order of
their names, one after another.
"""

from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path

from orderone.data.inputs import Root, Text
from orderone.data.missing import find_folder
from orderone.data.reviews import read_reviews
from orderone.data.text import text

NAMED = {  # folders of the data root, and the files to read there
    "sotu": "*.txt",
    "gutenberg": "*.txt",
    "imdb": "reviews.json",
}
_WHOLE = 1 << 30
_SEPARATOR = b"\n\n"


def read_corpus(source: Text, root: Root = "data") -> bytes:
    """Return the text of `source`, never empty."""
    if isinstance(source, bytes | bytearray | memoryview):
        return _not_empty(bytes(source), "the bytes given")
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
    raise ValueError(
        f"source: expected 'python', {', '.join(map(repr, NAMED))}, a file, a folder, a list of"
        f" files, bytes, or a tensor of token numbers; got {type(source).__name__}"
        f" {str(source)[:60]!r}"
    )


def _read_named(folder: Path, pattern: str) -> bytes:
    if pattern.endswith(".txt"):
        return read_files(sorted(folder.glob(pattern)))
    return _not_empty(_SEPARATOR.join(read_reviews(folder / pattern)), f"the reviews in {folder}")


def read_files(paths: Iterable[Path]) -> bytes:
    """Return the text of these files, one after another."""
    paths = list(paths)
    documents = [as_utf8(path.read_bytes()) for path in paths]
    return _not_empty(_SEPARATOR.join(documents), f"{paths[0]} and what follows it")


def as_utf8(raw: bytes) -> bytes:
    """Return text in utf-8 with the line ends of Unix.

    Text that is not utf-8 is read as latin-1, in which every byte is a letter.
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
        raise FileNotFoundError(
            f"source: expected a text file or a folder, and there is none at {path.absolute()};"
            f" known names are 'python', {', '.join(map(repr, NAMED))}"
        )
    texts = []
    for file in sorted(path.rglob("*.txt")):
        if file.is_file() and not file.name.startswith("."):
            texts.append(file)
    if not texts:
        raise FileNotFoundError(
            f"source: expected .txt files in {path.absolute()}, and there are none; give a list of"
            " the files"
        )
    return texts


def _not_empty(text: bytes, where: str) -> bytes:
    if text:
        return text
    raise ValueError(f"source: expected text, and {where} hold none")
