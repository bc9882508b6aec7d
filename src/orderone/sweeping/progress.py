"""How a sweep goes: trials, steps a second, the time that is left, the best so far. Shown on
terminals only."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import inf, isfinite
from typing import TypeAlias

from orderone.sweeping.trial import Trial
from orderone.training.outcome import Outcome

_EVERY = 0.1  # seconds between drawings
Draw: TypeAlias = Callable[[int, int, str, float, str], None]


class Progress:
    """Counts; `shown` draws. Steps of trials that end early count as done."""

    def __init__(self, total: int, steps: int, shown: Draw | None = None):
        self.total = total
        self.steps = steps
        self.done: int = 0
        self.best: float = inf
        self.told: str = ""
        self._under_way: dict[str, int] = {}
        self._trained = 0
        self._started = time.monotonic()
        self._drawn = 0.0
        self._shown = shown

    def report(self, step: int, losses: Mapping[str, float]) -> None:
        for key in losses:
            self._trained += step - self._under_way.get(key, 0)
            self._under_way[key] = step
        self._draw()

    def finish(self, trial: Trial, outcome: Outcome) -> None:
        self._trained += max(0, len(outcome.losses) - self._under_way.pop(trial.key, 0))
        self.done += 1
        if isfinite(outcome.final) and outcome.final < self.best:
            self.best = outcome.final
            self.told = str(trial)
        self._draw(always=True)

    def skip(self, trial: Trial, outcome: Outcome) -> None:
        """One that was done before."""
        self._trained -= len(outcome.losses)
        self.finish(trial, outcome)

    @property
    def rate(self) -> float:
        """Steps of single trials, per second."""
        return self._trained / max(time.monotonic() - self._started, 1e-9)

    def _draw(self, always: bool = False) -> None:
        now = time.monotonic()
        if self._shown is None or (not always and now - self._drawn < _EVERY):
            return
        self._drawn = now
        completed = self.done * self.steps + sum(self._under_way.values())
        best = ""
        if isfinite(self.best):
            best = f"best {self.best:.4g}: {self.told}"
        self._shown(
            completed, self.total * self.steps, f"{self.done}/{self.total} trials", self.rate, best
        )


@contextmanager
def shown(total: int, steps: int, quiet: bool) -> Iterator[Progress]:
    """A bar where somebody may be watching, and silence otherwise."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    if quiet or not console.is_terminal or not total:
        yield Progress(total, steps)
        return
    rate = TextColumn("{task.fields[rate]:.0f} steps/s")
    best = TextColumn("{task.fields[best]}")
    columns = TextColumn("{task.description}"), BarColumn(), rate, TimeRemainingColumn(), best
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"0/{total} trials", total=total * steps, rate=0.0, best="")

        def draw(done: int, all_of_it: int, what: str, rate: float, best: str) -> None:
            bar.update(
                task, completed=done, total=all_of_it, description=what, rate=rate, best=best
            )

        yield Progress(total, steps, draw)
