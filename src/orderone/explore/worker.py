"""The process that computes: `python -m orderone.explore.worker`.

It reads a line of JSON for each question, and writes a status and a line of JSON. It is a
program of its own so that it can be ended in the middle of a calculation, which threads cannot. It
ends by itself when its input does.
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping
from math import isfinite, isnan

OK = 200
WRONG = 400
FAILED = 500


def answer(view: str, text: str) -> tuple[int, dict[str, object]]:
    """Return status and body: the numbers of the view, or a message about a wrong query."""
    from orderone.explore.query import Query
    from orderone.explore.views import VIEWS

    try:
        return OK, VIEWS[view](Query(text))
    except (ValueError, OverflowError) as error:
        return WRONG, {"error": str(error)}
    except Exception as error:  # a bug: the page says so, and the worker goes on
        return FAILED, {"error": f"{type(error).__name__}: {error}"}


def plain(value: object) -> object:
    """Return a value that JSON can hold.

    JSON has no infinity: it becomes the string that JavaScript reads as a number.
    """
    if type(value) is float:
        return _plain_float(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    to_list = getattr(value, "tolist", None)
    if to_list is not None:  # an array, or a number of numpy's
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


def main() -> None:
    """Answer questions until the input ends."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # printed text must not get into the answers
    warnings.simplefilter("ignore")  # overflow becomes infinity, and the page says so
    # Loaded before the first question, which should not wait for it
    import orderone.explore.views  # noqa: F401

    for line in sys.stdin:
        status, body = answer(*json.loads(line))
        out.write(f"{status} {json.dumps(plain(body), allow_nan=False)}\n")
        out.flush()


if __name__ == "__main__":
    main()
