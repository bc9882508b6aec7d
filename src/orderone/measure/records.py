"""Records: tidy tables with units and provenance, written as JSON lines or Parquet."""

import json
import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import torch

from orderone.core.errors import InputError
from orderone.core.schema import read_value
from orderone.core.version import VERSION

SIZES = ("rms", "mean", "max", "finite")
UNITS = {
    "rms": "root mean square of all entries, in units of the tensor",
    "mean": "mean of all entries (of their moduli, if complex), in units of the tensor",
    "max": "largest absolute value, in units of the tensor",
    "finite": "fraction of entries that are finite",
    "step": "optimizer steps since the first record",
    "loss": "of the batch of that step, before the step",
    "ratio": "RMS of a product over the product of the RMS of its factors",
    "norm": "largest singular value, in units of the tensor",
    "relative": "norm / sqrt(fan_out / fan_in), in units of the tensor",
    "exponent": "e in RMS = k n^e, without unit; low and high bound it",
}
PROVENANCE = "provenance"

# software that results depend on -> its version
VERSIONS: dict[str, str] = {
    "orderone": VERSION,
    "torch": torch.__version__,
    "python": platform.python_version(),
}

Result = TypeVar("Result")


def table(
    rows: Sequence[Sequence[object]], columns: list[str], provenance: Mapping[str, object]
) -> pd.DataFrame:
    """Return a frame whose attributes hold units and provenance; pandas carries them along."""
    frame = pd.DataFrame(rows, columns=pd.Index(columns))
    frame.attrs = {
        "units": {column: UNITS[column] for column in columns if column in UNITS},
        PROVENANCE: dict(provenance),
    }
    return frame


def write(frame: pd.DataFrame, path: str | PathLike[str]) -> None:
    """Write a frame as .parquet or .jsonl, depending on the ending.

    The first line of a .jsonl file has units, provenance and types of the columns. JSON has no
    numbers that are not finite: these are written as "NaN", "Infinity", "-Infinity".
    """
    path = _known(path)
    frame = frame.copy(deep=False)
    frame.attrs = {str(key): _plain(value) for key, value in frame.attrs.items()}
    if path.suffix == ".parquet":
        _needs_pyarrow(lambda: frame.to_parquet(path, index=False))
        return
    types = {str(name): str(dtype) for name, dtype in frame.dtypes.items()}
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"attrs": frame.attrs, "columns": types}, allow_nan=False) + "\n")
        for line in _lines(frame):
            file.write(json.dumps(line, allow_nan=False) + "\n")


def _lines(frame: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Yield the rows, with all digits of every number and null for missing values."""
    names = [str(name) for name in frame.columns]
    columns = [_cells(frame.iloc[:, i]) for i in range(len(names))]
    for row in zip(*columns, strict=True):
        yield dict(zip(names, row, strict=True))


def _cells(column: pd.Series) -> list[object]:
    if pd.api.types.is_float_dtype(column.dtype):
        return [_plain(value) for value in column]
    cells: list[object] = []
    for value, is_missing in zip(column, column.isna(), strict=True):
        if is_missing:
            cells.append(None)
        else:
            cells.append(_plain(value))
    return cells


def _plain(value: object) -> object:
    """Convert a value to types of JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(x) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        if value > 0:
            return "Infinity"
        return "-Infinity"
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)


def read(path: str | PathLike[str]) -> pd.DataFrame:
    """Read a file that `write` wrote; raise an InputError that names the line that is wrong."""
    path = _known(path)
    try:
        if path.suffix == ".parquet":
            return _needs_pyarrow(lambda: pd.read_parquet(path))
        return _read_lines(path)
    except InputError:
        raise
    except Exception as error:  # pandas and pyarrow raise many kinds for damaged files
        if isinstance(error, OSError) and error.errno is not None:  # it cannot be opened
            raise
        first_line = next(iter(str(error).splitlines()), type(error).__name__)
        raise _damaged(path, first_line) from error


def _read_lines(path: Path) -> pd.DataFrame:
    lines: list[object] = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                lines.append(json.loads(line, parse_int=_integer))
            except (ValueError, OverflowError, RecursionError) as error:
                raise _damaged(path, f"line {number}: expected JSON: {error}") from error
    head = lines[0] if lines else None
    if not isinstance(head, dict) or not {"attrs", "columns"} <= head.keys():
        message = (
            f"path: expected a file of records, got {path.name}, whose first line names no columns"
        )
        raise InputError(message, "not-records", argument="path")
    columns = read_value(Mapping[str, str], head["columns"], "line 1: columns")
    attributes = read_value(Mapping[str, Mapping[str, object]], head["attrs"], "line 1: attrs")
    for number, line in enumerate(lines[1:], 2):
        if not isinstance(line, dict) or line.keys() != columns.keys():
            names = ", ".join(columns)
            raise _damaged(path, f"line {number}: expected an object with the fields {names}")
    frame = pd.DataFrame(lines[1:], columns=pd.Index(list(columns)))
    for name, kind in columns.items():
        try:
            frame[name] = frame[name].astype(kind)
        except (ValueError, TypeError, OverflowError) as error:
            raise _damaged(path, f"field {name}: expected {kind}: {error}") from error
    frame.attrs = attributes
    return frame


def _integer(text: str) -> int:
    """Return a whole number; raise an OverflowError if tables cannot convert it to a float."""
    number = int(text)
    float(number)
    return number


def _damaged(path: Path, message: str) -> InputError:
    return InputError(f"{path}: damaged file of records: {message}", "not-records", argument="path")


def _known(path: str | PathLike[str]) -> Path:
    if not isinstance(path, (str, PathLike)):
        message = f"path: expected a path, got {path!r}"
        raise InputError(message, "wrong-type", argument="path")
    path = Path(path)
    if path.suffix not in (".jsonl", ".parquet"):
        message = f"path: expected a name that ends in .jsonl or .parquet, got {path.name!r}"
        raise InputError(message, argument="path")
    return path


def _needs_pyarrow(action: Callable[[], Result]) -> Result:
    """Run an action; raise an InputError if pyarrow is missing."""
    try:
        return action()
    except ImportError as error:
        message = "Parquet needs pyarrow; pip install 'orderone[parquet]', or write .jsonl"
        raise InputError(message, "needs-pyarrow", argument="path") from error
