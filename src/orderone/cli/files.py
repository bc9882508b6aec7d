"""Files that a verb will write: whatever would keep them from being written is told before minutes
of work."""

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

NEEDS = {"html": ("plotly", "jinja2"), "png": ("matplotlib",), "parquet": ("pyarrow",)}
EXTRAS = {"html": "report", "png": "png", "parquet": "parquet"}
RECORDS = (".jsonl", ".parquet")


def check_files(files: Mapping[str, str | None]) -> None:
    """`html`, `png` and `save` by their options; those that are None are not asked for."""
    for name, given in files.items():
        if given is None:
            continue
        if not _writable(given):
            raise ValueError(
                f"{name}: cannot write {given!r}; expected a file in a folder that exists; make the"
                " folder first"
            )
        kind = Path(given).suffix[1:] if name == "save" else name
        missing = [package for package in NEEDS.get(kind, ()) if not find_spec(package)]
        if missing:
            raise ValueError(
                f"{name}: this needs {missing[0]}; pip install 'orderone[{EXTRAS[kind]}]'"
            )


def check_records(path: str | None) -> None:
    """Records know two formats."""
    if path is not None and Path(path).suffix not in RECORDS:
        raise ValueError(f"save: expected a name that ends in {' or '.join(RECORDS)}, got {path!r}")


def check_folder(path: str, name: str) -> None:
    """A folder that is not there yet is made later."""
    place = Path(path).absolute()
    there = next(folder for folder in (place, *place.parents) if folder.exists())
    if not path or not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(
            f"{name}: cannot write into {path!r}; expected a folder, or the name of a new one"
        )


def wrote(path: object) -> None:
    """On standard error: standard output may be JSON."""
    print(f"wrote {path}", file=sys.stderr)


def _writable(path: str) -> bool:
    file = Path(path)
    there = file if file.exists() else file.absolute().parent
    return bool(path) and not file.is_dir() and there.exists() and os.access(there, os.W_OK)
