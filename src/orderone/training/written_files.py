"""Files that a pass writes: state that no checkpoint holds.

Python reports every file that it opens, removes or renames to audit hooks (PEP 578), whatever
module does it. A hook cannot be removed; ours does nothing outside of `written_files`. Files that
the code of the data writes, such as a cache, and those of the compiler are left out, and so are
files that were removed before the end.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType
from typing import Any

from orderone.torch_compat import COMPILER_MODULES
from orderone.training.source import Source

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READS_DATA: CodeType = Source.many.__code__
_watching = threading.local()  # `paths`, if this thread is watched
_installed = threading.Event()


@contextmanager
def written_files() -> Iterator[list[str]]:
    """Yield a list; at the end it has the paths that this thread has written in this context."""
    if not _installed.is_set():
        _installed.set()
        sys.addaudithook(_heard)
    found: list[str] = []
    before = getattr(_watching, "paths", None)
    paths: dict[str, None] = {}
    _watching.paths = paths
    try:
        yield found
    finally:
        _watching.paths = before
        found += [path for path in paths if os.path.isfile(path)]


def _heard(event: str, args: tuple[Any, ...]) -> None:
    paths = getattr(_watching, "paths", None)
    if paths is None or event not in _PATHS:
        return
    path = _PATHS[event](args)
    if isinstance(path, (str, bytes, os.PathLike)) and _of_model(sys._getframe(1)):
        with suppress(OSError, ValueError):  # an error here would become one of the user's call
            paths[os.path.abspath(os.fsdecode(path))] = None


def _opened(args: tuple[Any, ...]) -> object:
    path, _, flags = args
    if isinstance(flags, int) and flags & WRITING:
        return path
    return None


_PATHS: dict[str, Callable[[tuple[Any, ...]], object]] = {
    "open": _opened,
    "os.rename": lambda args: args[1],
    "os.link": lambda args: args[1],
    "os.truncate": lambda args: args[0],
    "sqlite3.connect": lambda args: args[0],
}


def _of_model(frame: Any) -> bool:
    """Return whether the model's code writes: no data code or compiler is among the callers."""
    while frame is not None:
        if frame.f_code is _READS_DATA:
            return False
        if str(frame.f_globals.get("__name__")).startswith(COMPILER_MODULES):
            return False
        frame = frame.f_back
    return True
