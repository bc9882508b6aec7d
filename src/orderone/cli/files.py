"""Files that a verb will write: reasons why they cannot be written are found before the work."""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

NEEDS: dict[str, tuple[str, ...]] = {
    "html": ("plotly", "jinja2"),
    "png": ("matplotlib",),
    "parquet": ("pyarrow",),
}
EXTRAS = {"html": "report", "png": "png", "parquet": "parquet"}
RECORDS = (".jsonl", ".parquet")


def check_files(files: Mapping[str, str | None]) -> None:
    """Check paths by their options `html`, `png` and `save`; None is no file."""
    for name, path in files.items():
        if path is None:
            continue
        if not _writable(path):
            raise ValueError(
                f"{name}: cannot write {path!r}; expected a file in a folder that exists; make the"
                " folder first"
            )
        kind = name
        if name == "save":
            kind = Path(path).suffix[1:]
        missing = [package for package in NEEDS.get(kind, ()) if not find_spec(package)]
        if missing:
            raise ValueError(
                f"{name}: this needs {missing[0]}; pip install 'orderone[{EXTRAS[kind]}]'"
            )


def check_records(path: str | None) -> None:
    """Check that the name of a file of records ends in one of two formats."""
    if path is not None and Path(path).suffix not in RECORDS:
        raise ValueError(f"save: expected a name that ends in {' or '.join(RECORDS)}, got {path!r}")


def check_folder(path: str, name: str) -> None:
    """Check that a folder can be written to; one that does not exist is made later."""
    existing = Path(path).absolute()
    while not existing.exists():
        existing = existing.parent
    if not path or not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ValueError(
            f"{name}: cannot write into {path!r}; expected a folder, or the name of a new one"
        )


def wrote(path: object) -> None:
    """Say so on standard error: standard output may be JSON."""
    print(f"wrote {path}", file=sys.stderr)


def _writable(path: str) -> bool:
    file = Path(path)
    if not path or file.is_dir():
        return False
    if file.exists():
        return os.access(file, os.W_OK)
    folder = file.absolute().parent
    return folder.exists() and os.access(folder, os.W_OK)
