"""Time limit for code that cannot be asked to stop, such as a compiler written in Python."""

import ctypes
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN = 1.0  # seconds until the code is interrupted again, if it caught the first interruption


class TimeLimitReached(BaseException):
    """Raised inside the limited code; a BaseException, so that the code does not catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitReached inside this context after so many seconds.

    In the main thread, waiting for another process or thread is interrupted too. In another thread,
    or where there is no SIGALRM, the interruption waits until Python code runs again.
    """
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM"):
        with _by_signal(seconds):
            yield
        return
    with _by_thread(seconds):
        yield


@contextmanager
def _by_signal(seconds: float) -> Iterator[None]:
    active = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if active:
            raise TimeLimitReached

    handler_before = signal.signal(signal.SIGALRM, interrupt)
    started = time.monotonic()
    delay_before, interval_before = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    finally:
        active = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler_before)
        if delay_before:  # the timer of someone else
            left = max(delay_before - (time.monotonic() - started), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, left, interval_before)


@contextmanager
def _by_thread(seconds: float) -> Iterator[None]:
    limited = ctypes.c_ulong(threading.get_ident())
    ended = threading.Event()
    lock = threading.Lock()

    def watch() -> None:
        wait = seconds
        while not ended.wait(wait):
            with lock:
                if not ended.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        limited, ctypes.py_object(TimeLimitReached)
                    )
            wait = AGAIN

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        with lock:
            ended.set()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(limited, None)  # one that is still on its way
