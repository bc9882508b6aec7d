"""A lock between processes that ends, at the latest, with the process that holds it.

The operating system locks an open file and releases it when the process ends, however it ends: no
lock is ever stale. Some network file systems have no locks; there, every process continues as if
no other were running.
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if os.name == "nt":
    import msvcrt
else:
    import fcntl

PAUSE = 0.05  # seconds between two attempts
TAKEN = (errno.EACCES, errno.EAGAIN)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Yield whether this process holds the lock; with `wait`, it always does.

    The file exists only while a process holds the lock.
    """
    file = _take(path)
    while file is None and wait:
        time.sleep(PAUSE)
        file = _take(path)
    try:
        yield file is not None
    finally:
        if file is not None:
            with suppress(OSError):  # Windows cannot remove a file that another process has open
                path.unlink()
            os.close(file)


def _take(path: Path) -> int | None:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if _lock(file) and _is_current_file(file, path):
        return file
    os.close(file)
    return None


def _lock(file: int) -> bool:
    try:
        if os.name == "nt":
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in TAKEN
    return True


def _is_current_file(file: int, path: Path) -> bool:
    """Return whether `path` is the open file.

    The last holder may have removed it after this process opened it; the next process would then
    lock another file.
    """
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
