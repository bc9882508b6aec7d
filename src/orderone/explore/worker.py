"""The process that computes: `python -m orderone.explore.worker`. A line of JSON in; a status and a
line of JSON out.

It is a program of its own so that it can be ended in the middle of a calculation, which threads
cannot. It ends by itself when its input does.
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping
from math import isfinite, isnan
from typing import Any

OK = 200
WRONG = 400
FAILED = 500


def answer(view: str, text: str) -> tuple[int, dict[str, Any]]:
    """Status and body: what the view says, or the message of what is wrong with the query."""
    from orderone.explore.query import Query
    from orderone.explore.views import VIEWS

    try:
        return OK, VIEWS[view](Query(text))
    except (ValueError, OverflowError) as error:
        return WRONG, {"error": str(error)}
    except (
        Exception
    ) as error:  # a fault of ours: the page says so, and the next question finds a worker
        return FAILED, {"error": f"{type(error).__name__}: {error}"}


def plain(value: Any) -> Any:
    """As JSON has it. It has no word for infinity, so that becomes the string that JavaScript reads
    as a number."""
    if type(value) is float:
        if isfinite(value):
            return value
        if isnan(value):
            return None
        if value > 0:
            return "Infinity"
        return "-Infinity"
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):  # an array, or a number of numpy's
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def main() -> None:
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout = sys.stderr  # what somebody prints must not get into the answers
    warnings.simplefilter("ignore")  # what overflows is infinite, and the page says so
    import orderone.explore.views  # noqa: F401 - before the first question, which should not wait for it

    for line in sys.stdin:
        status, body = answer(*json.loads(line))
        out.write(f"{status} {json.dumps(plain(body), allow_nan=False)}\n")
        out.flush()


if __name__ == "__main__":
    main()
