"""Store of outcomes in one SQLite file. One process writes, any number may read.

Every outcome is one transaction in the write-ahead log: if the process is killed, no outcome that
was added is lost or incomplete. An outcome that cannot be written (full disk, locked file) stays in
memory and is tried again with the next one: training continues. If the file is deleted during a
sweep, the next write makes it anew with all its rows.
"""

import os
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Annotated, TypeAlias

from orderone.core.canonical import canonical
from orderone.core.errors import InputError, with_code
from orderone.core.inputs import UserInput
from orderone.sweeping.store_rows import INSERT, Results, as_row, read_rows
from orderone.sweeping.trial import Trial
from orderone.sweeping.writer_lock import is_held, lock_path, one_writer, release
from orderone.training.outcome import Outcome

StorePath: TypeAlias = Annotated[str | os.PathLike[str], UserInput]
APPLICATION = 0x6F726431  # "ord1": identifies the file as a store of orderone
VERSION = 2  # of new files; 2 has checksums
READABLE = (1, 2)
COPIES = 3  # attempts to copy a database that is being written
PATIENCE = 10.0  # seconds to wait for another program that has locked the file
_TABLES = """
CREATE TABLE jobs (fingerprint TEXT PRIMARY KEY, described TEXT NOT NULL);
CREATE TABLE trials (
    key TEXT PRIMARY KEY, job TEXT NOT NULL, settings TEXT NOT NULL, status TEXT NOT NULL,
    final REAL, losses BLOB NOT NULL, kind TEXT NOT NULL, evaluation TEXT NOT NULL,
    diverged_at INTEGER, stopped_at INTEGER, seconds REAL NOT NULL, error TEXT,
    facts TEXT NOT NULL, finished_at REAL NOT NULL, checksum TEXT);
CREATE INDEX trials_of_a_job ON trials (job);
"""


class Store:
    """Writer of a store: `with Store("runs.db") as store: store.add(trial, outcome)`."""

    def __init__(self, path: StorePath, patience: float = PATIENCE):
        self.path: Path = _path(path)
        self.file: Path = self.path.resolve()  # the path without symbolic links
        self.unsaved: Results = {}
        self.trouble: str | None = None  # why the outcomes in `unsaved` are not on disk
        self._patience = patience
        had_lock = lock_path(self.file).exists()
        self._lock = one_writer(self.file)
        try:
            with _explained(self.path):
                self._database = _opened(self.file, patience)
                self._opened_file = self.file.stat()
        except BaseException:
            # leave no lock file beside a file that is not a store
            if self._lock is not None and not had_lock:
                lock_path(self.file).unlink(missing_ok=True)
            release(self._lock)
            raise

    @property
    def checkpoints(self) -> Path:
        """Folder for checkpoints of running trainings."""
        return self.file.with_name(f"{self.file.name}.checkpoints")

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
            self._find_file()
            rows = [as_row(trial, outcome) for trial, outcome in self.unsaved.values()]
            with _transaction(self._database):
                self._database.executemany(INSERT, rows)
        except (sqlite3.Error, OSError, InputError) as error:
            self._warn(error.message if isinstance(error, InputError) else str(error))
            return False
        self.unsaved = {}
        self.trouble = None
        return True

    def _find_file(self) -> None:
        """Check that the file and the lock are where they were opened; repair what can be.

        SQLite goes on writing to a file that was deleted or renamed, and nobody would find the
        rows.
        """
        if self._lock is not None and not is_held(self._lock, self.file):
            release(self._lock)
            self._lock = None
            self._lock = one_writer(self.file)
        try:
            found = self.file.stat()
        except FileNotFoundError:
            self._restore()
            return
        if not os.path.samestat(found, self._opened_file):
            raise InputError("another file has taken its place", argument="store")

    def _restore(self) -> None:
        """Write the file anew, with the rows of the deleted one, which is still open."""
        copy = self.file.with_name(f"{self.file.name}.restored")
        copy.unlink(missing_ok=True)
        with closing(sqlite3.connect(copy)) as database:
            self._database.backup(database)
        self._database.close()  # before the new file has a log, which this would delete
        for ending in ("-wal", "-shm"):
            self.file.with_name(f"{self.file.name}{ending}").unlink(missing_ok=True)
        copy.rename(self.file)
        self._opened_file = self.file.stat()
        self._database = _opened(self.file, self._patience)
        text = (
            f"store: {self.path} was deleted or renamed while the sweep ran; it was written again,"
            " with all finished trials"
        )
        warnings.warn(with_code(text, "store-vanished"), stacklevel=5)

    def _warn(self, why: str) -> None:
        if self.trouble is None:
            # The first failed write waited the full timeout; later ones wait one second, so that
            # training is not held up.
            with suppress(sqlite3.Error):
                self._database.execute("PRAGMA busy_timeout = 1000")
            text = (
                f"store: cannot write to {self.path} ({why}); training continues, and finished"
                f" trials stay in memory until writing works again; {_remedy(why)}"
            )
            warnings.warn(with_code(text, "results-not-saved"), stacklevel=4)
        self.trouble = why

    def read(self, job: str | None = None) -> Results:
        with _explained(self.path):
            return read_rows(self._database, job, self.path)

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._database.close()
        release(self._lock)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
        self.close()


def read_store(path: StorePath, job: str | None = None) -> Results:
    """Return all trials of a store, or those of one job."""
    with reading(path) as database:
        if database is None:
            return {}
        return read_rows(database, job, Path(path))


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
    with _explained(path), _connected(path.resolve()) as database:
        if _is_new(database):  # its writer has only just created it
            yield None
            return
        _check_version(database, path)
        yield database


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Connect to a file for reading, also where nothing can be written.

    Reading a write-ahead log needs a file beside it (`-shm`), and a journal that a crash has left
    must be rolled back. Where the folder cannot be written, this happens in a copy of the files.
    """
    with ExitStack() as stack:
        database = stack.enter_context(closing(_connect(path, "mode=ro")))
        try:
            database.execute("SELECT count(*) FROM sqlite_master")
        except sqlite3.OperationalError:
            if not any(log.is_file() and log.stat().st_size for log in _logs(path)):
                how = "immutable=1"
            else:
                how = "mode=rw"
                if not os.access(path.parent, os.W_OK):
                    folder = stack.enter_context(TemporaryDirectory(prefix="orderone-"))
                    path = _copied(path, Path(folder))
            database = stack.enter_context(closing(_connect(path, how)))
        yield database


def _logs(path: Path) -> list[Path]:
    return [path.with_name(f"{path.name}{ending}") for ending in ("-wal", "-journal")]


def _connect(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?{how}", uri=True)


def _copied(path: Path, folder: Path) -> Path:
    """Copy a database and its logs; repeat this if they were written meanwhile."""
    files = [path, *(log for log in _logs(path) if log.is_file())]
    for _ in range(COPIES):
        before = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        for file in files:
            copyfile(file, folder / file.name)
        if before == [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]:
            break
    return folder / path.name


def _path(path: StorePath) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise InputError(
            f'store: expected the path of a file such as "runs.db", got {path!r}',
            "wrong-type",
            argument="store",
        )
    if Path(path).name == ":memory:":
        raise InputError(
            "store: expected the path of a file, got ':memory:'; leave out store= for a sweep whose"
            " results are only in memory",
            argument="store",
        )
    return Path(path)


# --- opening --------------------------------------------------------------------------------------


def _opened(path: Path, patience: float) -> sqlite3.Connection:
    if not path.parent.is_dir():
        raise InputError(
            f"store: the folder {path.parent} does not exist; create it first", argument="store"
        )
    if path.is_file() and path.stat().st_nlink > 1:
        raise InputError(
            f"store: {path} is a hard link, so the same file has a second name. A process that"
            " writes under that name would damage the file; pass a copy of it, or remove the other"
            " name",
            "store-not-usable",
            argument="store",
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
            elif _version(database) == 1:
                database.execute("ALTER TABLE trials ADD COLUMN checksum TEXT")
                database.execute(f"PRAGMA user_version = {VERSION}")
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
    if (version := _version(database)) not in READABLE:
        raise InputError(
            f"store: {path} has format {version}, but this version of orderone reads formats up to"
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
    if "taken its place" in why:
        return "move that file away, and the next finished trial writes the store again"
    if "full" in why:
        return "free some disk space, then run the same call again"
    if "locked" in why:
        return "close the program that has the file open"
    if "readonly" in why or "unable to open" in why:
        return "pass a file in a folder that you may write to"
    return "pass another file name"
