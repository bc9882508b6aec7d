"""File layer below SQLite that records every change of a file, and fails at a chosen one.

It is a VFS (https://sqlite.org/vfs.html): a copy of that of the system, with other functions for
writing, truncating, syncing and deleting. `with FileLayer() as layer` makes it the default of this
process.
"""

import ctypes
import sqlite3
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, Structure, byref, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

OK = 0
FULL = 13  # the disk is full
IO_ERROR = 10
FUNCTION = c_void_p  # of the structures, where it is not replaced
_Open = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, c_void_p)
_Delete = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_Write = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_Truncate = CFUNCTYPE(c_int, c_void_p, c_int64)
_Sync = CFUNCTYPE(c_int, c_void_p, c_int)


class _Vfs(Structure):
    _fields_ = [
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        ("xOpen", FUNCTION),
        ("xDelete", FUNCTION),
        ("others", FUNCTION * 14),
    ]


class _Methods(Structure):
    _fields_ = [
        ("iVersion", c_int),
        ("xClose", FUNCTION),
        ("xRead", FUNCTION),
        ("xWrite", FUNCTION),
        ("xTruncate", FUNCTION),
        ("xSync", FUNCTION),
        ("others", FUNCTION * 13),
    ]


class _File(Structure):
    _fields_ = [("pMethods", c_void_p)]


@dataclass(frozen=True)
class Change:
    """One change: kind "open", "write", "truncate", "sync" or "delete"."""

    kind: str
    file: str  # its name without the folder
    offset: int = 0
    content: bytes = b""


def library() -> Any:
    """Return the SQLite that Python uses; None if it cannot be reached."""
    import _sqlite3

    for path in (_sqlite3.__file__, "libsqlite3.so.0"):
        try:
            found = ctypes.CDLL(path)
            found.sqlite3_vfs_find.restype = c_void_p
            found.sqlite3_libversion.restype = c_char_p
        except (OSError, AttributeError):
            continue
        if found.sqlite3_libversion().decode() == sqlite3.sqlite_version:
            return found
    return None


class FileLayer:
    """Default VFS of this process while its context is open; files must be closed before its end.

    `fail(number, change)` returns the error code of a change, or 0.
    """

    _all: ClassVar[
        list["FileLayer"]
    ] = []  # SQLite may call their functions as long as the process runs

    def __init__(self, fail: Callable[[int, Change], int] = lambda number, change: OK):
        self.changes: list[Change] = []
        self.failing = True
        self._fail = fail
        self._library = library()
        self._names: dict[int, str] = {}  # by address of the open file
        self._originals: dict[int, _Methods] = {}
        self._methods: dict[int, tuple[_Methods, _Methods]] = {}  # by address: the two versions
        self._system = _Vfs.from_address(self._library.sqlite3_vfs_find(None))
        self._vfs = _Vfs.from_buffer_copy(self._system)
        self._functions = (
            _Open(self._open),
            _Delete(self._delete),
            _Write(self._write),
            _Truncate(self._truncate),
            _Sync(self._sync),
        )
        self._vfs.zName = f"orderone-tests-{len(self._all)}".encode()
        self._vfs.xOpen = ctypes.cast(self._functions[0], c_void_p)
        self._vfs.xDelete = ctypes.cast(self._functions[1], c_void_p)
        self._all.append(self)

    def __enter__(self) -> "FileLayer":
        assert self._library.sqlite3_vfs_register(byref(self._vfs), 1) == OK
        return self

    def __exit__(self, *_: object) -> None:
        assert self._library.sqlite3_vfs_unregister(byref(self._vfs)) == OK

    def _note(self, change: Change) -> int:
        """Record a change, unless it fails; return its error code."""
        error = self._fail(len(self.changes), change) if self.failing else OK
        if error == OK:
            self.changes.append(change)
        return error

    def _open(self, vfs: int, name: int, file: int, flags: int, out: int) -> int:
        path = ctypes.string_at(name).decode() if name else ""
        is_new = bool(path) and not Path(path).exists()
        status = _Open(self._system.xOpen)(vfs, name, file, flags, out)
        found = _File.from_address(file)
        if status != OK or not found.pMethods or not path:
            return status
        self._names[file] = Path(path).name
        if is_new:
            self._note(Change("open", Path(path).name))
        if found.pMethods not in self._methods:
            system = _Methods.from_address(found.pMethods)
            ours = _Methods.from_buffer_copy(system)
            ours.xWrite = ctypes.cast(self._functions[2], c_void_p)
            ours.xTruncate = ctypes.cast(self._functions[3], c_void_p)
            ours.xSync = ctypes.cast(self._functions[4], c_void_p)
            self._methods[found.pMethods] = (system, ours)
        self._originals[file], ours = self._methods[found.pMethods]
        found.pMethods = ctypes.addressof(ours)
        return status

    def _delete(self, vfs: int, name: bytes, sync: int) -> int:
        error = self._note(Change("delete", Path(name.decode()).name))
        return error or _Delete(self._system.xDelete)(vfs, name, sync)

    def _write(self, file: int, content: int, size: int, offset: int) -> int:
        change = Change("write", self._names[file], offset, ctypes.string_at(content, size))
        error = self._note(change)
        return error or _Write(self._originals[file].xWrite)(file, content, size, offset)

    def _truncate(self, file: int, size: int) -> int:
        error = self._note(Change("truncate", self._names[file], size))
        return error or _Truncate(self._originals[file].xTruncate)(file, size)

    def _sync(self, file: int, flags: int) -> int:
        error = self._note(Change("sync", self._names[file]))
        return error or _Sync(self._originals[file].xSync)(file, flags)


def replay(changes: Sequence[Change], folder: Path, torn: bool = False) -> None:
    """Write the files as they are after these changes; if `torn`, half of the last write is lost.

    The shared memory of a log is not part of it: it is lost in a crash.
    """
    folder.mkdir()
    files: dict[str, bytearray] = {}
    for number, change in enumerate(changes):
        content = files.setdefault(change.file, bytearray())
        written = change.content
        if torn and number == len(changes) - 1:
            written = written[: len(written) // 2]
        if change.kind == "delete":
            del files[change.file]
        elif change.kind == "truncate":
            del content[change.offset :]
        elif change.kind == "write":
            content.extend(bytes(max(0, change.offset - len(content))))
            content[change.offset : change.offset + len(written)] = written
    for name, content in files.items():
        if not name.endswith("-shm"):
            (folder / name).write_bytes(content)


def only_synced(changes: Sequence[Change]) -> list[Change]:
    """Leave out the writes to each file after its last sync: a power cut may lose them."""
    kept: list[Change] = []
    synced: set[str] = set()
    for change in reversed(changes):
        if change.kind == "sync":
            synced.add(change.file)
        if change.kind in ("open", "delete") or change.file in synced:
            kept.append(change)
    return kept[::-1]
