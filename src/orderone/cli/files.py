"""Check the files that a verb will write before it starts to work."""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from orderone.core.errors import InputError

NEEDS: dict[str, tuple[str, ...]] = {
    "html": ("jinja2",),
    "png": ("matplotlib",),
    "parquet": ("pyarrow",),
}
EXTRAS = {"html": "report", "png": "png", "parquet": "parquet"}
RECORDS = (".jsonl", ".parquet")


def check_files(files: Mapping[str, str | None]) -> None:
    """Check that files can be written, by their options `html`, `png` and `save`.

    None means that the user does not want the file.
    """
    for name, path in files.items():
        if path is None:
            continue
        if not _writable(path):
            raise InputError(
                f"{name}: cannot write {path!r}; expected a file in an existing folder",
                "cannot-write-file",
                argument=name,
            )
        kind = name
        if name == "save":
            kind = Path(path).suffix[1:]
        missing = [package for package in NEEDS.get(kind, ()) if not find_spec(package)]
        if missing:
            raise InputError(
                f"{name}: needs {missing[0]}; pip install 'orderone[{EXTRAS[kind]}]'",
                "missing-package",
                argument=name,
            )


def check_records(path: str | None) -> None:
    """Check that the name of a file of records ends in .jsonl or .parquet."""
    if path is not None and Path(path).suffix not in RECORDS:
        message = f"save: expected a name that ends in {' or '.join(RECORDS)}, got {path!r}"
        raise InputError(message, argument="save")


def check_folder(path: str, name: str) -> None:
    """Check that files can be written into a folder; a new folder is made later."""
    existing = Path(path).absolute()
    while not existing.exists():
        existing = existing.parent
    if not path or not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(
            f"{name}: cannot write into {path!r}; expected a folder or the name of a new folder",
            "cannot-write-file",
            argument=name,
        )


def wrote(path: object) -> None:
    """Print which file was written, on standard error: standard output may be JSON."""
    print(f"wrote {path}", file=sys.stderr)


def _writable(path: str) -> bool:
    file = Path(path)
    if not path or file.is_dir():
        return False
    if file.exists():
        return os.access(file, os.W_OK)
    folder = file.absolute().parent
    return folder.exists() and os.access(folder, os.W_OK)
