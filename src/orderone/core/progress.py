"""Progress of long work: a bar on a terminal, elsewhere a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Report: TypeAlias = Callable[[int, int, str], None]  # (steps done, total steps, description)
LINE_SECONDS = 5.0  # between lines of progress where standard error is not a terminal


class LineProgress:
    """Prints a line to standard error every `every` seconds, for pipes, files and notebooks.

    Work that is shorter prints nothing.
    """

    def __init__(self, every: float | None = None):
        self.every: float = LINE_SECONDS if every is None else every
        self._started = time.monotonic()
        self._printed = self._started

    def print(self, text: str) -> None:
        """Print the text and the time since the start, if it is time."""
        now = time.monotonic()
        if now - self._printed < self.every:
            return
        self._printed = now
        line = f"{text} ({now - self._started:.0f} s)"
        print(line.encode("ascii", "replace").decode(), file=sys.stderr, flush=True)


@contextmanager
def bar(first: str, quiet: bool = False) -> Iterator[Report]:
    """Yield a function that moves the bar; `first` is the description until its first call."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    if quiet or not console.is_terminal:
        lines = LineProgress()

        def report_line(done: int, total: int, description: str) -> None:
            if not quiet:
                text = f"{done} of {total}"
                if description:
                    text = f"{text}: {description}"
                lines.print(text)

        yield report_line
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(first, total=None)

        def report(done: int, total: int, description: str) -> None:
            progress.update(task, completed=done, total=total, description=description)

        yield report
