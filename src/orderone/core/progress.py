"""A bar for long work, on a terminal where somebody may be watching."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Report: TypeAlias = Callable[[int, int, str], None]  # what is done, the total, what is being done


@contextmanager
def bar(first: str, quiet: bool = False) -> Iterator[Report]:
    """A function that moves the bar; `first` is what is told before it is called."""
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
    with Progress(
        *columns, console=console, transient=True, disable=quiet or not console.is_terminal
    ) as shown:
        task = shown.add_task(first, total=None)
        yield lambda done, total, what: shown.update(
            task, completed=done, total=total, description=what
        )
