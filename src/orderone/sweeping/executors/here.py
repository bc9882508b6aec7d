"""In this process, one unit after another."""

from collections.abc import Iterator, Sequence

from orderone.sweeping import interrupts
from orderone.sweeping.alone import Report
from orderone.sweeping.engine import Engine
from orderone.sweeping.outcome import Outcome
from orderone.sweeping.trial import Trial


class Here:
    workers = 1

    def run(
        self, engine: Engine, units: Sequence[Sequence[Trial]], report: Report
    ) -> Iterator[Outcome]:
        for unit in units:
            if interrupts.pending():
                raise KeyboardInterrupt
            yield from engine.run(unit, report)
