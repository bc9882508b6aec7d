"""Rows of a store: a trial and its outcome as values of SQLite, and back.

Every row has a checksum of its values: a bit that flipped on the disk does not become a result.
Rows without a checksum, of stores of format 1, must have values of the right types and ranges, and
the key must be that of the settings.
"""

import json
import sqlite3
import time
import warnings
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isnan, nan
from pathlib import Path
from typing import TypeAlias

import numpy as np

from orderone.core.canonical import canonical
from orderone.core.errors import with_code
from orderone.core.schema import Limit, Limits, SchemaError, read_value
from orderone.sweeping.trial import Scalar, Trial
from orderone.training.outcome import Outcome, read_evaluation

Results: TypeAlias = dict[str, tuple[Trial, Outcome]]  # by key
COLUMNS = (
    "key",
    "job",
    "settings",
    "status",
    "final",
    "losses",
    "kind",
    "evaluation",
    "diverged_at",
    "stopped_at",
    "seconds",
    "error",
    "facts",
    "finished_at",
)
INSERT = (
    f"INSERT OR REPLACE INTO trials ({', '.join(COLUMNS)}, checksum)"
    f" VALUES ({', '.join('?' * len(COLUMNS))}, ?)"
)
AT_LEAST_0: Limit = ("0 or more", lambda number: number >= 0)
LIMITS: Limits = dict.fromkeys(("diverged_at", "stopped_at", "seconds"), AT_LEAST_0)
Value: TypeAlias = str | int | float | bytes | None  # of SQLite


def as_row(trial: Trial, outcome: Outcome) -> tuple[Value, ...]:
    """Return the values of `COLUMNS`, and their checksum."""
    losses = np.ascontiguousarray(outcome.losses)
    little = losses.astype(losses.dtype.newbyteorder("<"))
    values: tuple[Value, ...] = (
        trial.key,
        trial.job,
        canonical(dict(trial.settings)),
        outcome.status,
        None if isnan(outcome.final) else float(outcome.final),  # SQLite has no NaN
        little.tobytes(),
        little.dtype.str,
        json.dumps(outcome.evaluation),
        _integer(outcome.diverged_at),
        _integer(outcome.stopped_at),
        float(outcome.seconds),
        _encodable(outcome.error),
        json.dumps(dict(outcome.facts), default=str),
        time.time(),
    )
    return (*values, checksum(values))


def checksum(values: Sequence[Value]) -> str:
    """Return the SHA-256 of the values of a row."""
    digest = sha256()
    for value in values:
        digest.update(repr(value).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def read_rows(database: sqlite3.Connection, job: str | None, path: Path) -> Results:
    """Return the trials of a store, or of one job; leave out damaged rows with a warning."""
    if _has_checksums(database):
        stored = "checksum"
    else:
        stored = "NULL"
    query = f"SELECT {', '.join(COLUMNS)}, {stored} AS checksum FROM trials"
    if job is None:
        rows = database.execute(f"{query} ORDER BY rowid")
    else:
        rows = database.execute(f"{query} WHERE job = ? ORDER BY rowid", (job,))
    rows.row_factory = sqlite3.Row
    results: Results = {}
    damaged: list[str] = []
    for row in rows:
        *values, expected = row
        if expected is not None and checksum(values) != expected:
            damaged.append(str(row["key"]))
            continue
        try:
            results[row["key"]] = (_trial(row), _outcome(row))
        except (ValueError, TypeError, OverflowError, RecursionError):  # values of wrong kinds
            damaged.append(str(row["key"]))
    if damaged:
        text = (
            f"store: {len(damaged)} rows of {path} are damaged and were left out (the first is"
            f" trial {damaged[0][:12]}); the same sweep trains these trials again"
        )
        warnings.warn(with_code(text, "damaged-rows"), stacklevel=3)
    return results


def _has_checksums(database: sqlite3.Connection) -> bool:
    """Return whether the table has checksums; stores of format 1 have none."""
    columns = database.execute("PRAGMA table_info(trials)").fetchall()
    return "checksum" in [column[1] for column in columns]


def _integer(value: int | None) -> int | None:
    return None if value is None else int(value)


def _encodable(text: str | None) -> str | None:
    """Return a text without lone surrogates, which SQLite refuses; names of files may have them."""
    if text is None:
        return None
    return text.encode("utf-8", "backslashreplace").decode()


def _trial(row: sqlite3.Row) -> Trial:
    """Return the trial of a row; raise a SchemaError if the key is not that of the settings."""
    settings = read_value(Mapping[str, Scalar], json.loads(row["settings"]), "settings")
    trial = Trial(settings, read_value(str, row["job"], "job"))
    if trial.key != row["key"]:
        raise SchemaError("key: expected the hash of the settings of this row")
    return trial


def _outcome(row: sqlite3.Row) -> Outcome:
    """Return the outcome of a row; raise a SchemaError for values that no training has."""
    dtype = np.dtype(row["kind"])
    if dtype.kind != "f":
        raise SchemaError(f"kind: expected floating-point numbers, got {dtype}")
    losses = np.frombuffer(row["losses"], dtype).astype(dtype.newbyteorder("="))
    facts = read_value(Mapping[str, object], json.loads(row["facts"]), "facts")
    return Outcome(
        key=row["key"],
        losses=losses,
        evaluation=tuple(_evaluation(row["evaluation"])),
        final=nan if row["final"] is None else _number(row["final"], "final"),
        diverged_at=read_value(int | None, row["diverged_at"], "diverged_at", LIMITS),
        stopped_at=read_value(int | None, row["stopped_at"], "stopped_at", LIMITS),
        seconds=read_value(float, row["seconds"], "seconds", LIMITS),
        error=read_value(str | None, row["error"], "error"),
        facts=facts,
    )


def _evaluation(text: str) -> list[tuple[int, float]]:
    """Return (updates done, held-out loss) from JSON; losses may be infinite or NaN."""
    pairs = json.loads(text)
    for step, loss in pairs:
        read_value(int, step, "evaluation", {"evaluation": AT_LEAST_0})
        _number(loss, "evaluation")
    return read_evaluation(pairs)


def _number(value: object, name: str) -> float:
    """Return a number, which may be infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SchemaError(f"{name}: expected a number, got {value!r}")
    return float(value)
