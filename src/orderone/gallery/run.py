"""`reproduce`: measure what is missing, judge, draw."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from orderone.core.errors import one_of
from orderone.gallery.experiment import SCALES, Experiment, Finding, Grid, Picture, Records, verdict
from orderone.gallery.store import Kept, read_provenance, read_records

Tell = Callable[[str, int, int], None]  # part, its number, how many


@dataclass(frozen=True)
class Reproduced:
    """Records of an experiment at one scale, and what follows from them."""

    experiment: Experiment
    scale: str
    records: Records
    provenance: dict[str, Any]

    @cached_property
    def lacking(self) -> list[str]:
        """Parts without a record: then there is nothing to judge or to draw."""
        wanted = self.experiment.parts(self.experiment.scales[self.scale])
        return [part for part in wanted if part not in self.records or self.records[part].empty]

    @cached_property
    def findings(self) -> Sequence[Finding]:
        if self.lacking:
            return (
                Finding(
                    self.experiment.claim,
                    None,
                    f"not judged: no records of {', '.join(self.lacking)}",
                ),
            )
        return tuple(self.experiment.judge(self.records))

    @cached_property
    def pictures(self) -> Sequence[Picture | Grid]:
        if self.lacking:
            return ()
        return tuple(self.experiment.draw(self.records))

    @property
    def verdict(self) -> str:
        """Of the paper's claims, all of them together: one of VERDICTS."""
        return verdict(self.findings)

    @property
    def corrected(self) -> str | None:
        """The same of what we say is true instead; None where the paper stands uncorrected."""
        if any(f.of == "corrected" for f in self.findings):
            return verdict(self.findings, "corrected")
        return None


def reproduce(
    experiment: Experiment,
    scale: str = "small",
    folder: Path = Path("reproduced"),
    *,
    seeds: int | None = None,
    again: bool = False,
    tell: Tell = lambda part, number, total: None,
) -> Reproduced:
    """Run what `folder` does not hold yet. Every part is kept as soon as it is measured; `again`
    measures all anew.

    Of several runs in one folder each takes the parts that no other is at, and waits for those in
    the end."""
    settings = settings_of(experiment, scale, seeds)
    kept = Kept(folder, experiment, scale, settings)
    parts = experiment.parts(settings)
    if again:
        records = {}
    else:
        records = {part: frame for part in parts if (frame := kept.get(part)) is not None}
    for wait in (False, True):
        for number, part in enumerate(parts, 1):
            if part in records:
                continue
            tell(f"{part}, which another run measures" if wait else part, number, len(parts))
            with kept.claim(part, wait) as free:
                if free:
                    records[part] = _measured(kept, part, parts[part], again)
    return Reproduced(experiment, scale, {part: records[part] for part in parts}, kept.provenance())


def _measured(
    kept: Kept, part: str, measure: Callable[[], pd.DataFrame], again: bool
) -> pd.DataFrame:
    known = None if again else kept.get(part)  # another run may have been faster
    if known is not None:
        return known
    start = time.perf_counter()
    frame = measure()
    return kept.put(part, frame, time.perf_counter() - start)


def load(experiment: Experiment, scale: str, folder: Path) -> Reproduced:
    """What a folder holds of it, measured at whatever time."""
    place = folder / experiment.name / scale
    return Reproduced(experiment, scale, read_records(place), read_provenance(place))


def settings_of(experiment: Experiment, scale: str, seeds: int | None = None) -> Any:
    settings = experiment.scales[one_of(scale, experiment.scales, f"scale of {experiment.name}")]
    if seeds is None:
        return settings
    if not has_seeds(experiment, scale):
        raise ValueError(
            f"seeds: {experiment.name} has no number of seeds to set, got {seeds}; leave it out"
        )
    return replace(settings, seeds=seeds)


def has_seeds(experiment: Experiment, scale: str) -> bool:
    return "seeds" in {f.name for f in fields(experiment.scales[scale])}


def nearest(experiment: Experiment, scale: str) -> str:
    """The scale itself, or the next smaller one that the experiment has."""
    known = SCALES[: SCALES.index(one_of(scale, SCALES, "scale")) + 1]
    return next(each for each in reversed(known) if each in experiment.scales)
