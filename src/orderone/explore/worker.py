"""The process that computes: `python -m orderone.explore.worker`.

It reads one line of JSON for each question and writes a status and one line of JSON. It is a
separate process because a process can be ended during a calculation and a thread cannot. It ends
when its input ends.

A calculation is limited in processor time, which other programs of the machine do not use up. The
process measures it itself, and ends with an answer when the limit is reached.
"""

import json
import os
import sys
import time
import warnings
from collections.abc import Mapping
from io import TextIOBase
from math import isfinite, isnan
from threading import Lock, Thread

from orderone.core.errors import with_code

OK = 200
WRONG = 400
FAILED = 500
TOO_LONG = 503
POLL = 0.05  # seconds between two looks at the processor time


class Clock:
    """Timer that ends this process, with an answer, if a question takes too much processor time."""

    def __init__(self, seconds: float, out: TextIOBase):
        self._seconds = seconds
        self._out = out
        self._lock = Lock()
        self._started: float | None = None  # processor time; None between two questions
        Thread(target=self._watch, daemon=True).start()

    def start(self) -> None:
        with self._lock:
            self._started = time.process_time()

    def stop(self) -> None:
        with self._lock:
            self._started = None

    def _watch(self) -> None:
        while True:
            time.sleep(POLL)
            with self._lock:
                started = self._started
                if started is not None and time.process_time() - started > self._seconds:
                    self._end()

    def _end(self) -> None:
        message = f"the calculation takes more than {self._seconds:g} seconds; choose smaller sizes"
        body = {"error": with_code(message, "too-slow")}
        self._out.write(f"{TOO_LONG} {json.dumps(body)}\n")
        self._out.flush()
        os._exit(0)


def answer(view: str, text: str) -> tuple[int, dict[str, object]]:
    """Return status and body: the numbers of the view, or an error message about the query."""
    from orderone.explore.query import Query
    from orderone.explore.views import VIEWS

    try:
        return OK, VIEWS[view](Query(text))
    except (ValueError, OverflowError) as error:
        return WRONG, {"error": str(error)}
    except Exception as error:  # a bug: the page shows it, and the worker continues
        return FAILED, {"error": f"{type(error).__name__}: {error}"}


def plain(value: object) -> object:
    """Return a value that JSON can represent.

    JSON has no infinity: it becomes the string "Infinity", which JavaScript converts to a number.
    """
    if type(value) is float:
        return _plain_float(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    to_list = getattr(value, "tolist", None)
    if to_list is not None:  # a numpy array or number
        return plain(to_list())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _plain_float(value: float) -> float | str | None:
    if isfinite(value):
        return value
    if isnan(value):
        return None
    if value > 0:
        return "Infinity"
    return "-Infinity"


def main(limit: float) -> None:
    """Answer questions until the input ends; `limit` is the processor time of one, in seconds."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # printed text must not mix with the answers
    warnings.simplefilter("ignore")  # overflow becomes infinity, which the page shows
    # Import before the first question, which would otherwise wait for it
    import orderone.explore.views  # noqa: F401

    clock = Clock(limit, out)
    for line in sys.stdin:
        clock.start()
        status, body = answer(*json.loads(line))
        clock.stop()
        out.write(f"{status} {json.dumps(plain(body), allow_nan=False)}\n")
        out.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
