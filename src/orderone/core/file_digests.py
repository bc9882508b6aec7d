"""SHA-256 of the content of files, kept so that a file is read again only after it has changed.

A file has changed if its size, its inode or one of its times is different. The time of the last
change of the inode cannot be set by a program: a file that was replaced and given its old time is
noticed. A file that was changed less than two seconds ago is read anew, because it may be changed
again within the resolution of its times.

Digests are kept in the cache folder of the user (`$XDG_CACHE_HOME/orderone`). If it cannot be
written, files are read every time.
"""

import hashlib
import os
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

RECENT = 2_000_000_000  # nanoseconds
THREADS = 8
BLOCK = 1 << 20  # bytes read at once
_TABLE = "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, state TEXT, digest TEXT)"


def file_digests(paths: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each file; raise an OSError for one that cannot be read."""
    states = {str(path.absolute()): _state(path) for path in paths}
    known = _read(states)
    missing = [path for path in states if path not in known]
    with ThreadPoolExecutor(THREADS) as pool:
        computed = dict(zip(missing, pool.map(_digest, missing), strict=True))
    oldest = time.time_ns() - RECENT
    _write({path: (states[path], computed[path]) for path in missing if _since(path) < oldest})
    digests = known | computed
    return [digests[str(path.absolute())] for path in paths]


def _state(path: Path) -> str:
    """Return a text that changes if the file is changed."""
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_dev} {stat.st_ino}"


def _since(path: str) -> int:
    stat = os.stat(path)
    return max(stat.st_mtime_ns, stat.st_ctime_ns)


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


# --- kept digests ---------------------------------------------------------------------------------


def _database() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "orderone" / "digests.db"


def _read(states: dict[str, str]) -> dict[str, str]:
    """Return the stored digests of files that have not changed since."""
    known: dict[str, str] = {}
    place = _database()
    if not place.is_file():
        return known
    with suppress(sqlite3.Error), closing(sqlite3.connect(place)) as database:
        for path, state in states.items():
            query = "SELECT digest FROM files WHERE path = ? AND state = ?"
            row = database.execute(query, (path, state)).fetchone()
            if row is not None:
                known[path] = row[0]
    return known


def _write(computed: dict[str, tuple[str, str]]) -> None:
    if not computed:
        return
    rows = [(path, state, digest) for path, (state, digest) in computed.items()]
    with suppress(sqlite3.Error, OSError):  # then the files are read again next time
        _database().parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(_database())) as database, database:
            database.execute(_TABLE)
            database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", rows)
