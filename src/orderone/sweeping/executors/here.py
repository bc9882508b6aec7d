"""Executor in this process: one unit after another."""

from collections.abc import Iterator, Sequence

from orderone.sweeping.engine import Engine
from orderone.sweeping.sequential import Report
from orderone.sweeping.trial import Trial
from orderone.training import interrupts
from orderone.training.outcome import Outcome


class Here:
    workers: int = 1

    def run(
        self, engine: Engine, units: Sequence[Sequence[Trial]], report: Report
    ) -> Iterator[Outcome]:
        for unit in units:
            if interrupts.pending():
                raise KeyboardInterrupt
            yield from engine.run(unit, report)
