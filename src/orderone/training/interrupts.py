"""Ctrl-C and SIGTERM between two steps: whoever trains asks, saves what there is, and then
leaves."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_asked: list[int] = []


def pending() -> bool:
    """Whether to stop at the next step. Engines ask after every step, save a checkpoint, and raise
    KeyboardInterrupt."""
    return bool(_asked)


@contextmanager
def deferred() -> Iterator[None]:
    """Within this, the first signal waits for the end of a step; a second one does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _note) for number in (signal.SIGINT, signal.SIGTERM)}
    _asked.clear()
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is None:  # it was not set from Python
                handler = signal.SIG_DFL
            signal.signal(number, handler)
        _asked.clear()


def _note(number: int, frame: FrameType | None) -> None:
    if _asked:
        raise KeyboardInterrupt
    _asked.append(number)
