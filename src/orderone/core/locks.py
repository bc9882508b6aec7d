"""One at a time: a lock between processes that lasts no longer than the process which holds it.

The system locks an open file, and lets go of it when its process ends, however that ends: no lock
is ever stale. Where a file system knows no locks, as some of networks do, everybody goes on as if
alone.
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
    """Whether the lock is ours; never False for those who wait. The file is there only while
    somebody holds it."""
    file = _take(path)
    while file is None and wait:
        time.sleep(PAUSE)
        file = _take(path)
    try:
        yield file is not None
    finally:
        if file is not None:
            with suppress(OSError):  # Windows keeps a file that somebody has open
                path.unlink()
            os.close(file)


def _take(path: Path) -> int | None:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if _lock(file) and _is_still(file, path):
        return file
    os.close(file)
    return None


def _lock(file: int) -> bool:
    try:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1) if os.name == "nt" else fcntl.flock(
            file, fcntl.LOCK_EX | fcntl.LOCK_NB
        )
    except OSError as error:
        return error.errno not in TAKEN
    return True


def _is_still(file: int, path: Path) -> bool:
    """Its last holder may have removed the file after we opened it; others would lock another
    one."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
