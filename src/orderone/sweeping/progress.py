"""Progress bar of a sweep: trials, steps per second, remaining time, best loss so far.

Where standard error is not a terminal, a line every few seconds says the same.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf, isfinite
from typing import TypeAlias

from orderone.core.progress import LineProgress
from orderone.sweeping.trial import Trial
from orderone.training.outcome import Outcome

_EVERY = 0.1  # seconds between drawings
_WIDE = 120  # columns of a terminal that has room for the settings of the best trial
Draw: TypeAlias = Callable[[int, int, str, float, str], None]


class Progress:
    """Counts trials and steps, and calls `draw`; trials that end early count with all steps."""

    def __init__(self, total: int, steps: int, draw: Draw | None = None, wide: bool = True):
        self.total = total
        self.steps = steps
        self.done: int = 0
        self.best: float = inf
        self.best_trial: str = ""
        self._running_steps: dict[str, int] = {}
        self._trained = 0
        self._started = time.monotonic()
        self._last_drawn = 0.0
        self._draw_bar = draw
        self._wide = wide

    def report(self, step: int, losses: Mapping[str, float]) -> None:
        for key in losses:
            self._trained += step - self._running_steps.get(key, 0)
            self._running_steps[key] = step
        self._draw()

    def finish(self, trial: Trial, outcome: Outcome) -> None:
        self._trained += max(0, len(outcome.losses) - self._running_steps.pop(trial.key, 0))
        self.done += 1
        if isfinite(outcome.final) and outcome.final < self.best:
            self.best = outcome.final
            self.best_trial = str(trial)
        self._draw(always=True)

    def skip(self, trial: Trial, outcome: Outcome) -> None:
        """Count a trial that is in the store already."""
        self._trained -= len(outcome.losses)
        self.finish(trial, outcome)

    @property
    def rate(self) -> float:
        """Steps per second, summed over trials."""
        return self._trained / max(time.monotonic() - self._started, 1e-9)

    def _draw(self, always: bool = False) -> None:
        now = time.monotonic()
        if self._draw_bar is None or (not always and now - self._last_drawn < _EVERY):
            return
        self._last_drawn = now
        completed = self.done * self.steps + sum(self._running_steps.values())
        best = ""
        if isfinite(self.best):
            best = f"best loss {self.best:.4g}"
            if self._wide:
                best += f" ({self.best_trial})"
        self._draw_bar(
            completed, self.total * self.steps, f"{self.done}/{self.total} trials", self.rate, best
        )


@contextmanager
def progress_bar(total: int, steps: int, quiet: bool) -> Iterator[Progress]:
    """Draw a progress bar on a terminal, and print lines elsewhere; nothing if `quiet`."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if quiet or not total:
        yield Progress(total, steps)
        return
    if not console.is_terminal:
        lines = LineProgress()

        def write(done: int, total_steps: int, text: str, rate: float, best: str) -> None:
            parts = [text, f"{100 * done / max(total_steps, 1):.0f} %", f"{rate:.0f} steps/s", best]
            lines.print(", ".join(filter(None, parts)))

        yield Progress(total, steps, write)
        return
    rate = TextColumn("{task.fields[rate]:.0f} steps/s")
    best = TextColumn("{task.fields[best]}")
    bar_column = BarColumn(bar_width=20)
    columns = TextColumn("{task.description}"), bar_column, rate, TimeRemainingColumn(), best
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"0/{total} trials", total=total * steps, rate=0.0, best="")

        def draw(done: int, total_steps: int, text: str, rate: float, best: str) -> None:
            bar.update(
                task, completed=done, total=total_steps, description=text, rate=rate, best=best
            )

        yield Progress(total, steps, draw, wide=console.width >= _WIDE)
