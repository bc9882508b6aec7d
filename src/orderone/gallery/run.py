"""`reproduce`: measure missing parts, judge the records, and draw them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from orderone.core.errors import InputError, one_of
from orderone.gallery.experiment import SCALES, Experiment, Finding, Grid, Picture, Records, verdict
from orderone.gallery.store import Provenance, RecordStore, read_provenance, read_records

Tell: TypeAlias = Callable[[str, int, int], None]  # part, its number, how many


@dataclass(frozen=True)
class Reproduced:
    """Records of an experiment at one scale, with their findings and figures."""

    experiment: Experiment
    scale: str
    records: Records
    provenance: Provenance

    @cached_property
    def lacking(self) -> list[str]:
        """Parts without records; if there are any, nothing is judged or drawn."""
        expected = self.experiment.parts(self.experiment.scales[self.scale])
        return [part for part in expected if part not in self.records or self.records[part].empty]

    @cached_property
    def findings(self) -> Sequence[Finding]:
        """Verdicts on the single claims."""
        if self.lacking:
            why = f"not judged: records are missing for {', '.join(self.lacking)}"
            return (Finding(self.experiment.claim, None, why),)
        return tuple(self.experiment.judge(self.records))

    @cached_property
    def pictures(self) -> Sequence[Picture | Grid]:
        """Figures and tables."""
        if self.lacking:
            return ()
        return tuple(self.experiment.draw(self.records))

    @property
    def verdict(self) -> str:
        """Verdict on all claims of the paper together: one of VERDICTS."""
        return verdict(self.findings)

    @property
    def corrected(self) -> str | None:
        """Verdict on the corrected claims; None if there are none."""
        if any(finding.of == "corrected" for finding in self.findings):
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
    """Measure the parts that are not in `folder` yet; return all records.

    Every part is stored as soon as it is measured; `again` measures all parts again. Several runs
    may share a folder: each measures parts that no other run is measuring, and finally waits for
    the other runs.
    """
    settings = settings_of(experiment, scale, seeds)
    store = RecordStore(folder, experiment, scale, settings)
    parts = experiment.parts(settings)
    records: dict[str, pd.DataFrame] = {}
    if not again:
        for part in parts:
            stored = store.get(part)
            if stored is not None:
                records[part] = stored
    try:
        for wait in (False, True):
            for number, part in enumerate(parts, 1):
                if part in records:
                    continue
                tell(f"{part} (waiting for another run)" if wait else part, number, len(parts))
                with store.claim(part, wait) as claimed:
                    if claimed:
                        records[part] = _measure(store, part, parts[part], again)
    except KeyboardInterrupt:
        text = f"interrupted: {len(records)} of {len(parts)} parts of {experiment.name} are saved"
        raise KeyboardInterrupt(
            f"{text} in {folder}; run the same call again to continue"
        ) from None
    ordered = {part: records[part] for part in parts}
    return Reproduced(experiment, scale, ordered, store.provenance())


def _measure(
    store: RecordStore, part: str, measure: Callable[[], pd.DataFrame], again: bool
) -> pd.DataFrame:
    if not again:
        stored = store.get(part)  # another run may have measured it meanwhile
        if stored is not None:
            return stored
    start = time.perf_counter()
    frame = measure()
    return store.put(part, frame, time.perf_counter() - start)


def load(experiment: Experiment, scale: str, folder: Path) -> Reproduced:
    """Read the records of an experiment from a folder, whatever their settings and version."""
    records_folder = folder / experiment.name / scale
    return Reproduced(
        experiment, scale, read_records(records_folder), read_provenance(records_folder)
    )


def settings_of(experiment: Experiment, scale: str, seeds: int | None = None) -> Any:
    """Return the settings of a scale, with another number of seeds if `seeds` is not None."""
    settings = experiment.scales[one_of(scale, experiment.scales, f"scale of {experiment.name}")]
    if seeds is None:
        return settings
    if not has_seeds(experiment, scale):
        message = (
            f"seeds: expected none, since {experiment.name} has a fixed number of seeds; got"
            f" {seeds}; leave it out"
        )
        raise InputError(message, argument="seeds")
    return replace(settings, seeds=seeds)


def has_seeds(experiment: Experiment, scale: str) -> bool:
    """Return whether the experiment has a number of seeds that can be set."""
    return any(field.name == "seeds" for field in fields(experiment.scales[scale]))


def nearest(experiment: Experiment, scale: str) -> str:
    """Return the scale, or the next smaller one that the experiment has."""
    up_to_scale = SCALES[: SCALES.index(one_of(scale, SCALES, "scale")) + 1]
    return next(name for name in reversed(up_to_scale) if name in experiment.scales)
