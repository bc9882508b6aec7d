"""Everything that several runs recorded, in one place: by layer, quantity and step, the moments of
every run."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orderone.measure import records
from orderone.measure.alignment_result import COLUMNS as ALIGNED
from orderone.measure.alignment_result import MeasuredAlignment
from orderone.measure.fit import Fit, fit_exponents
from orderone.measure.runs import Run
from orderone.observe.moments import Moments

if TYPE_CHECKING:
    import pandas as pd

Where = tuple[int, int]  # size and seed of a run
What = tuple[str, str, int]  # layer, quantity, step
FAINT = 1e-30  # sizes below this are zero


@dataclass
class Observations:
    """`axis` is width or depth; `key` names what layers of different runs share."""

    axis: str
    key: Callable[[str], str]
    runs: list[Run] = field(default_factory=list)
    _found: dict[What, dict[Where, Moments]] = field(default_factory=dict)

    def add(self, run: Run) -> None:
        self.runs.append(run)
        at = (run.size, run.seed)
        for step, name, quantity, moments in run.rows:
            here = self._found.setdefault((self.key(name), quantity, step), {})
            here[at] = here[at] + moments if at in here else moments
        for (name, quantity, step), here in [*self._found.items()]:
            if quantity == "update" and at in here:
                self._add_relative(name, step, at, here[at])
        for name, size in run.penalties.items():
            self._add_penalty(self.key(name), at, size)

    def _add_penalty(self, name: str, at: Where, size: float) -> None:
        """Beside the first gradient that there is."""
        gradients = (self.at(name, "gradient", step).get(at) for step in range(self.runs[-1].steps))
        first = next((m.rms for m in gradients if m is not None and m.rms > FAINT), None)
        if first is not None:
            self._found.setdefault((name, "penalty", 0), {})[at] = _number(size / first)

    def _add_relative(self, name: str, step: int, at: Where, update: Moments) -> None:
        """Relative to the initial size, which rules set; what starts at zero has none."""
        weight = self._found[name, "weight", 0].get(at)
        if weight is not None and weight.rms > 0:
            self._found.setdefault((name, "relative update", step), {})[at] = _number(
                update.rms / weight.rms
            )

    @property
    def complete(self) -> list[Run]:
        """Runs that went to their end, if these are enough to fit; otherwise all."""
        found = [run for run in self.runs if not run.ended]
        if _enough({(run.size, run.seed): 0.0 for run in found}):
            return found
        return self.runs

    @property
    def steps(self) -> int:
        """Updates that all of them have made."""
        return min((run.steps for run in self.complete), default=0)

    def begins(self, name: str, since: int = 0) -> int:
        """The first step in which a gradient moves the tensor in every run: schedules and tensors
        may start at zero, and before that weight decay is all there is. -1: never."""
        for step in range(since, self.steps):
            sizes = [
                m.rms
                for quantity in ("gradient", "update")
                for m in self.at(name, quantity, step).values()
            ]
            if sizes and min(sizes) > FAINT:
                return step
        return -1

    def at(self, name: str, quantity: str, step: int) -> Mapping[Where, Moments]:
        return self._found.get((name, quantity, step), {})

    def names(self, quantity: str) -> list[str]:
        return list(dict.fromkeys(name for name, found, _ in self._found if found == quantity))

    def largest(self, name: str, quantity: str) -> float:
        """Over all steps and runs; nan if it was never recorded."""
        steps = range(max((run.steps for run in self.runs), default=0) + 1)
        return max(
            (m.rms for step in steps for m in self.at(name, quantity, step).values()),
            default=math.nan,
        )

    def fits(
        self, asked: Iterable[tuple[str, int]], confidence: float
    ) -> Iterator[tuple[What, Fit]]:
        """Of quantities at steps: one fit for each layer that has a positive size in every run."""
        wanted = set(asked)
        everywhere = {(run.size, run.seed) for run in self.complete}
        groups: dict[tuple[Where, ...], list[tuple[What, list[float]]]] = {}
        for what, here in self._found.items():
            if what[1:] in wanted:
                sizes = {at: m.rms for at, m in here.items() if at in everywhere}
                usable = (
                    what[1] == "decay" or sizes.keys() == everywhere
                )  # decay is not random: one seed tells
                if (
                    usable
                    and all(math.isfinite(x) and x > FAINT for x in sizes.values())
                    and _enough(sizes)
                ):
                    groups.setdefault(tuple(sizes), []).append((what, list(sizes.values())))
        for places, members in groups.items():
            fitted = fit_exponents(
                [size for size, _ in places], [sizes for _, sizes in members], confidence=confidence
            )
            yield from zip((what for what, _ in members), fitted, strict=True)

    def frame(self, provenance: Mapping[str, Any]) -> "pd.DataFrame":
        rows = [
            (*at, step, name, quantity, *moments.row())
            for (name, quantity, step), here in self._found.items()
            for at, moments in here.items()
        ]
        columns = [self.axis, "seed", "step", "module", "quantity", *records.SIZES]
        return records.table(rows, columns, provenance)

    def alignment(self, provenance: Mapping[str, Any]) -> MeasuredAlignment | None:
        """Across the last step, where it was measured."""
        rows = [
            (run.size, run.seed, run.steps, *ratio) for run in self.runs for ratio in run.ratios
        ]
        if rows:
            return MeasuredAlignment(records.table(rows, ALIGNED, provenance))
        return None

    def losses(self, provenance: Mapping[str, Any]) -> "pd.DataFrame":
        rows = [
            (run.size, run.seed, step, loss)
            for run in self.runs
            for step, loss in enumerate(run.losses)
        ]
        return records.table(rows, [self.axis, "seed", "step", "loss"], provenance)


def _number(value: float) -> Moments:
    return Moments(1, value * value, value, value, float(math.isfinite(value)))


def _enough(places: Mapping[Where, float]) -> bool:
    return len(places) > 2 and len({size for size, _ in places}) > 1
