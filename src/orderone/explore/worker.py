"""The process that computes: `python -m orderone.explore.worker`.

It reads one line of JSON for each question and writes a status and one line of JSON. It is a
separate process because a process can be ended during a calculation and a thread cannot. It ends
when its input ends.
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


def main() -> None:
    """Answer questions until the input ends."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # printed text must not mix with the answers
    warnings.simplefilter("ignore")  # overflow becomes infinity, which the page shows
    # Import before the first question, which would otherwise wait for it
    import orderone.explore.views  # noqa: F401

    for line in sys.stdin:
        status, body = answer(*json.loads(line))
        out.write(f"{status} {json.dumps(plain(body), allow_nan=False)}\n")
        out.flush()


if __name__ == "__main__":
    main()
