"""Lock of a store: one process writes at a time.

The lock belongs to the file, not to one of its names: callers pass the path without symbolic links.
"""

import os
from pathlib import Path
from typing import IO

from orderone.core.errors import InputError


def one_writer(path: Path) -> IO[str] | None:
    """Return a lock that ends with the process, however it ends.

    Return None where files cannot be locked; then only the locks of SQLite protect the file.
    """
    if path.is_dir():
        raise InputError(
            f"store: expected a file, but {path} is a folder", "not-a-store", argument="store"
        )
    try:
        import fcntl

        lock = open(lock_path(path), "a+")  # noqa: SIM115  (open as long as the store is)
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


def is_held(lock: IO[str], path: Path) -> bool:
    """Return whether the lock file is still in its place; another writer would make a new one."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), lock_path(path).stat())
    except OSError:
        return False


def lock_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def release(lock: IO[str] | None) -> None:
    if lock is not None:
        lock.close()
