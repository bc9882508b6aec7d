"""A progress bar for long work, on terminals only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Report: TypeAlias = Callable[[int, int, str], None]  # (steps done, total steps, description)


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
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(first, total=None)

        def report(done: int, total: int, description: str) -> None:
            progress.update(task, completed=done, total=total, description=description)

        yield report
