"""Waiting in tests of pages that run in a browser."""

import time
from typing import Any

SECONDS = 30.0


def wait_until(page: Any, expression: str) -> None:
    """Wait until a JavaScript expression is true.

    `page.wait_for_function` evaluates a string inside the page, which the pages of reports forbid
    (Content-Security-Policy without unsafe-eval): it fails unless the first look succeeds.
    """
    deadline = time.monotonic() + SECONDS
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"not true after {SECONDS:g} s: {expression}"
        page.wait_for_timeout(20)
