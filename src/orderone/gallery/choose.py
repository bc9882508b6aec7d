"""Which records of an experiment to show, of those that several folders hold: the largest scale,
then the newest.

Half an experiment, or one of an older version, is left out and named.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orderone.gallery.experiment import SCALES, Experiment
from orderone.gallery.run import Reproduced, load
from orderone.gallery.store import read_provenance


def choose(experiment: Experiment, folders: Sequence[Path]) -> tuple[Reproduced | None, list[str]]:
    """What to show, and why other records are not shown. Of equals, those of the folder that is
    named first."""
    found = []
    notes = []
    for folder in folders:
        for scale in experiment.scales:
            if (folder / experiment.name / scale).is_dir():
                each, why = _read(experiment, scale, folder)
                notes += (
                    [f"{experiment.name}, {scale}, in {folder}: {why}; left out"] if why else []
                )
                found += [each] if each is not None else []
    return max(found, key=_rank, default=None), notes


def _read(experiment: Experiment, scale: str, folder: Path) -> tuple[Reproduced | None, str]:
    """The records if they are whole, or what is wrong with them."""
    try:
        why = _flaw(experiment, scale, read_provenance(folder / experiment.name / scale)["parts"])
        if why:
            return (None, why)
        return _judged(load(experiment, scale, folder))
    except (OSError, ValueError) as error:
        return None, f"cannot be read ({type(error).__name__}: {error})"


def _judged(each: Reproduced) -> tuple[Reproduced | None, str]:
    """Files that somebody changed can be read, and mean nothing to the judge, who may say so in any
    way."""
    try:
        _ = each.findings
        return each, ""
    except Exception as error:
        return None, f"cannot be judged ({type(error).__name__}: {error})"


def _flaw(experiment: Experiment, scale: str, parts: dict[str, Any]) -> str:
    wanted = list(experiment.parts(experiment.scales[scale]))
    missing = [part for part in wanted if part not in parts]
    if missing:
        return f"{len(missing)} of {len(wanted)} parts are missing"
    same = all(
        isinstance(parts[part], dict) and parts[part].get("version") == experiment.version
        for part in wanted
    )
    return "" if same else "of another version"


def _rank(each: Reproduced) -> tuple[int, str]:
    """Days are as exact as records are."""
    days = [part.get("measured", "") for part in each.provenance["parts"].values()]
    return SCALES.index(each.scale), max(days, default="")
