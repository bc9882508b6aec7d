"""Stop a training between two steps on Ctrl-C or SIGTERM, after its state was saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_signals: list[int] = []  # received and not yet handled


def pending() -> bool:
    """Return whether the user asked to stop.

    Training loops call this after every step, save a checkpoint, and raise KeyboardInterrupt.
    """
    return bool(_signals)


@contextmanager
def deferred() -> Iterator[None]:
    """Delay the first signal to the end of a step; a second signal stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _receive) for number in (signal.SIGINT, signal.SIGTERM)}
    _signals.clear()
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is None:  # it was not set from Python
                handler = signal.SIG_DFL
            signal.signal(number, handler)
        _signals.clear()


def _receive(number: int, frame: FrameType | None) -> None:
    if _signals:
        raise KeyboardInterrupt
    _signals.append(number)
