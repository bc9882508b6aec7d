"""Store of outcomes in one SQLite file. One process writes, any number may read.

Every outcome is one transaction in the write-ahead log: if the process is killed, no outcome that
was added is lost or incomplete. An outcome that cannot be written (full disk, locked file) stays in
memory and is tried again with the next one: training continues.
"""

import json
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from math import nan
from pathlib import Path
from typing import IO, Annotated, TypeAlias

import numpy as np

from orderone.core.canonical import canonical
from orderone.core.errors import InputError, with_code
from orderone.core.inputs import UserInput
from orderone.sweeping.trial import Trial
from orderone.training.outcome import Outcome, read_evaluation

StorePath: TypeAlias = Annotated[str | os.PathLike[str], UserInput]
Results: TypeAlias = dict[str, tuple[Trial, Outcome]]  # by key
APPLICATION = 0x6F726431  # "ord1": identifies the file as a store of orderone
VERSION = 1
PATIENCE = 10.0  # seconds to wait for another program that has locked the file
_TABLES = """
CREATE TABLE jobs (fingerprint TEXT PRIMARY KEY, described TEXT NOT NULL);
CREATE TABLE trials (
    key TEXT PRIMARY KEY, job TEXT NOT NULL, settings TEXT NOT NULL, status TEXT NOT NULL,
    final REAL, losses BLOB NOT NULL, kind TEXT NOT NULL, evaluation TEXT NOT NULL,
    diverged_at INTEGER, stopped_at INTEGER, seconds REAL NOT NULL, error TEXT,
    facts TEXT NOT NULL, finished_at REAL NOT NULL);
CREATE INDEX trials_of_a_job ON trials (job);
"""
_COLUMNS = (
    "key, job, settings, final, losses, kind, evaluation, diverged_at, stopped_at, seconds, error,"
    " facts"
)


class Store:
    """Writer of a store: `with Store("runs.db") as store: store.add(trial, outcome)`."""

    def __init__(self, path: StorePath, patience: float = PATIENCE):
        self.path: Path = _path(path)
        self.unsaved: Results = {}
        self.trouble: str | None = None  # why the outcomes in `unsaved` are not on disk
        had_lock = _lock_path(self.path).exists()
        self._lock = _one_writer(self.path)
        try:
            with _explained(self.path):
                self._database = _opened(self.path, patience)
        except BaseException:
            # leave no lock file beside a file that is not a store
            if self._lock is not None and not had_lock:
                _lock_path(self.path).unlink(missing_ok=True)
            _release(self._lock)
            raise

    @property
    def checkpoints(self) -> Path:
        """Folder for checkpoints of running trainings."""
        return self.path.with_name(f"{self.path.name}.checkpoints")

    def describe(self, fingerprint: str, described: Mapping[str, object]) -> None:
        """Store the settings of a fingerprint, to explain why two sweeps differ.

        The sweep that was described last is the newest.
        """
        with _explained(self.path):
            self._database.execute(
                "INSERT OR REPLACE INTO jobs VALUES (?, ?)",
                (fingerprint, canonical(dict(described))),
            )

    def add(self, trial: Trial, outcome: Outcome) -> None:
        """Write an outcome to disk; if that fails, add it to `unsaved` and warn."""
        self.unsaved[trial.key] = (trial, outcome)
        self.flush()

    def flush(self) -> bool:
        """Write the outcomes in `unsaved`; return whether all were written."""
        if not self.unsaved:
            return True
        try:
            rows = [_row(trial, outcome) for trial, outcome in self.unsaved.values()]
            with _transaction(self._database):
                self._database.executemany(
                    f"INSERT OR REPLACE INTO trials VALUES ({','.join('?' * 14)})", rows
                )
        except sqlite3.Error as error:
            self._warn(str(error))
            return False
        self.unsaved = {}
        self.trouble = None
        return True

    def _warn(self, why: str) -> None:
        if self.trouble is None:
            # The first failed write waited the full timeout; later ones wait one second, so that
            # training is not held up.
            self._database.execute("PRAGMA busy_timeout = 1000")
            text = (
                f"store: cannot write to {self.path} ({why}); training continues, and finished"
                f" trials stay in memory until writing works again; {_remedy(why)}"
            )
            warnings.warn(with_code(text, "results-not-saved"), stacklevel=4)
        self.trouble = why

    def read(self, job: str | None = None) -> Results:
        with _explained(self.path):
            return _read(self._database, job)

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._database.close()
        _release(self._lock)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
        self.close()


def read_store(path: StorePath, job: str | None = None) -> Results:
    """Return all trials of a store, or those of one job."""
    with reading(path) as database:
        return {} if database is None else _read(database, job)


@contextmanager
def reading(path: StorePath) -> Iterator[sqlite3.Connection | None]:
    """Open a store for reading; yield None if it has no tables yet.

    This works while another process writes to it, and in a read-only folder.
    """
    path = _path(path)
    if not path.is_file():
        raise InputError(
            f"store: the file {path} does not exist; expected a file written by"
            " orderone.sweep(..., store=...)",
            "not-a-store",
            argument="store",
        )
    way = "mode=ro" if os.access(path.parent, os.W_OK) else "immutable=1"
    with (
        _explained(path),
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?{way}", uri=True)) as database,
    ):
        if _is_new(database):  # its writer has only just created it
            yield None
            return
        _check_version(database, path)
        yield database


def _path(path: StorePath) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise InputError(
            f'store: expected the path of a file such as "runs.db", got {path!r}',
            "wrong-type",
            argument="store",
        )
    return Path(path)


# --- rows -----------------------------------------------------------------------------------------


def _row(trial: Trial, outcome: Outcome) -> tuple[object, ...]:
    losses = np.ascontiguousarray(outcome.losses)
    little = losses.astype(losses.dtype.newbyteorder("<"))
    return (
        trial.key,
        trial.job,
        canonical(dict(trial.settings)),
        outcome.status,
        outcome.final,
        little.tobytes(),
        little.dtype.str,
        json.dumps(outcome.evaluation),
        outcome.diverged_at,
        outcome.stopped_at,
        outcome.seconds,
        outcome.error,
        json.dumps(dict(outcome.facts), default=str),
        time.time(),
    )


def _read(database: sqlite3.Connection, job: str | None) -> Results:
    query = f"SELECT {_COLUMNS} FROM trials"
    if job is None:
        rows = database.execute(f"{query} ORDER BY rowid")
    else:
        rows = database.execute(f"{query} WHERE job = ? ORDER BY rowid", (job,))
    rows.row_factory = sqlite3.Row
    results: Results = {}
    for row in rows:
        trial = Trial(json.loads(row["settings"]), row["job"])
        results[row["key"]] = (trial, _outcome(row))
    return results


def _outcome(row: sqlite3.Row) -> Outcome:
    dtype = np.dtype(row["kind"])
    losses = np.frombuffer(row["losses"], dtype).astype(dtype.newbyteorder("="))
    return Outcome(
        key=row["key"],
        losses=losses,
        evaluation=tuple(read_evaluation(json.loads(row["evaluation"]))),
        final=nan if row["final"] is None else row["final"],
        diverged_at=row["diverged_at"],
        stopped_at=row["stopped_at"],
        seconds=row["seconds"],
        error=row["error"],
        facts=json.loads(row["facts"]),
    )


# --- opening --------------------------------------------------------------------------------------


def _opened(path: Path, patience: float) -> sqlite3.Connection:
    if not path.parent.is_dir():
        raise InputError(
            f"store: the folder {path.parent} does not exist; create it first", argument="store"
        )
    database = sqlite3.connect(
        path, timeout=patience, isolation_level=None, check_same_thread=False
    )
    try:
        if not (new := _is_new(database)):
            _check_version(database, path)  # first, so that no file of another program is changed
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        with _transaction(database):  # fails here if the file cannot be written
            if new:
                _create(database)
    except BaseException:
        database.close()
        raise
    return database


def _create(database: sqlite3.Connection) -> None:
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute(f"PRAGMA user_version = {VERSION}")
    for statement in filter(str.strip, _TABLES.split(";")):
        database.execute(statement)


def _is_new(database: sqlite3.Connection) -> bool:
    return not _number(database, "SELECT count(*) FROM sqlite_master") and not _version(database)


def _check_version(database: sqlite3.Connection, path: Path) -> None:
    if _number(database, "PRAGMA application_id") != APPLICATION:
        raise InputError(
            f"store: {path} is a database of another program; pass another file name",
            "not-a-store",
            argument="store",
        )
    if (version := _version(database)) != VERSION:
        raise InputError(
            f"store: {path} has format {version}, but this version of orderone reads format"
            f" {VERSION}; pass another file name, or use the version of orderone that wrote it",
            "store-of-other-version",
            argument="store",
        )


def _version(database: sqlite3.Connection) -> int:
    return _number(database, "PRAGMA user_version")


def _number(database: sqlite3.Connection, query: str) -> int:
    return int(database.execute(query).fetchone()[0])


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            with suppress(sqlite3.Error):
                database.execute("ROLLBACK")
        raise


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Replace errors of SQLite by an InputError with a remedy."""
    try:
        yield
    except sqlite3.Error as error:
        why = str(error)
        if "not a database" in why:
            raise InputError(
                f"store: {path} is not a store of orderone; pass another file name",
                "not-a-store",
                argument="store",
            ) from error
        raise InputError(
            f"store: cannot open {path} ({why}); {_remedy(why)}",
            "store-not-usable",
            argument="store",
        ) from error


def _remedy(why: str) -> str:
    if "full" in why:
        return "free some disk space, then run the same call again"
    if "locked" in why:
        return "close the program that has the file open"
    if "readonly" in why or "unable to open" in why:
        return "pass a file in a folder that you may write to"
    return "pass another file name"


# --- one writer -----------------------------------------------------------------------------------


def _one_writer(path: Path) -> IO[str] | None:
    """Return a lock that ends with the process, however it ends.

    Return None where files cannot be locked; then only the locks of SQLite protect the file.
    """
    if path.is_dir():
        raise InputError(
            f"store: expected a file, but {path} is a folder", "not-a-store", argument="store"
        )
    try:
        import fcntl

        lock = open(_lock_path(path), "a+")  # noqa: SIM115  (open as long as the store is)
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        owner = lock.read().strip()
        lock.close()
        raise InputError(
            f"store: process {owner or '(unknown)'} is writing to {path}; wait until it has ended,"
            " or pass another file name",
            "store-in-use",
            argument="store",
        ) from error
    except OSError:
        lock.close()
        return None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _release(lock: IO[str] | None) -> None:
    if lock is not None:
        lock.close()
