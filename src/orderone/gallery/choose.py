"""Choose among the records of an experiment in several folders: the largest scale, then the newest.

Incomplete records and records of another version are skipped, with a note.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from orderone.core.errors import with_code
from orderone.gallery.experiment import SCALES, Experiment
from orderone.gallery.run import Reproduced, load
from orderone.gallery.store import read_provenance


def choose(experiment: Experiment, folders: Sequence[Path]) -> tuple[Reproduced | None, list[str]]:
    """Return the records to show, and notes on records that were skipped.

    If several are equally good, return those of the folder that comes first.
    """
    candidates = []
    notes = []
    for folder in folders:
        for scale in experiment.scales:
            if not (folder / experiment.name / scale).is_dir():
                continue
            records, flaw = _read(experiment, scale, folder)
            if flaw:
                note = f"{experiment.name}, {scale}, in {folder}: {flaw}; skipped"
                notes.append(with_code(note, "records-skipped"))
            if records is not None:
                candidates.append(records)
    return max(candidates, key=_rank, default=None), notes


def _read(experiment: Experiment, scale: str, folder: Path) -> tuple[Reproduced | None, str]:
    """Return complete records, or the reason why they cannot be used."""
    try:
        parts = read_provenance(folder / experiment.name / scale)["parts"]
        flaw = _flaw(experiment, scale, parts)
        if flaw:
            return None, flaw
        records = load(experiment, scale, folder)
    except (OSError, ValueError) as error:
        return None, f"cannot be read ({type(error).__name__}: {error})"
    try:
        _ = records.findings
    except Exception as error:  # files that somebody changed may raise any error
        return None, f"cannot be judged ({type(error).__name__}: {error})"
    return records, ""


def _flaw(experiment: Experiment, scale: str, parts: Mapping[str, object]) -> str:
    expected = list(experiment.parts(experiment.scales[scale]))
    missing = [part for part in expected if part not in parts]
    if missing:
        return f"{len(missing)} of {len(expected)} parts are missing"
    for part in expected:
        known = parts[part]
        if not isinstance(known, dict) or known.get("version") != experiment.version:
            return "measured by another version of the experiment"
    return ""


def _rank(records: Reproduced) -> tuple[int, str]:
    """Order by scale, then by the day of the newest part; records have no finer time."""
    days = [part.get("measured", "") for part in records.provenance["parts"].values()]
    return SCALES.index(records.scale), max(days, default="")
