"""Records on disk: a folder for each experiment and scale, a CSV file for each part, and where all
of it comes from.

A part counts as kept only if it can be read, and was measured with the same settings by the same
version of the experiment. A folder never holds a mixture: the first part of other settings sets the
others aside. Several runs may share a folder at the same time: each measures what no other is at,
and nobody loses what another has written.
"""

import json
import os
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from orderone.core.locks import locked
from orderone.gallery.experiment import Experiment, Records
from orderone.measure.records import versions

SHIPPED = Path(__file__).parent / "results"  # measured by us, part of the package
DIGITS = "%.7g"
RECORD = "provenance.json"


class Kept:
    """The records of an experiment at one scale, below `folder`."""

    def __init__(self, folder: Path, experiment: Experiment, scale: str, settings: Any):
        self.folder = folder / experiment.name / scale
        self.identity = {"settings": _plain(settings), "version": experiment.version}
        self.experiment = experiment
        self.scale = scale

    def get(self, part: str) -> pd.DataFrame | None:
        if not self._has(part):
            return None
        try:
            frame = read_part(self.folder, part)
        except (OSError, ValueError):  # lost or damaged: to be measured again
            return None
        return (
            frame if self._has(part) else None
        )  # a run with other settings may have replaced it meanwhile

    def claim(self, part: str, wait: bool) -> AbstractContextManager[bool]:
        """To measure it alone: False inside if another run is at it and we do not wait for its
        end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return locked(self.folder / (file_of(part) + ".lock"), wait)

    def put(self, part: str, frame: pd.DataFrame, seconds: float) -> pd.DataFrame:
        """What comes back is what a later run will read, digit for digit."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / (RECORD + ".lock")):
            record = self.provenance()  # with what other runs have added
            record["parts"] = {
                k: known
                for k, known in record["parts"].items()
                if k != part and self._is_ours(known)
            }
            self._write_record(record)  # before the file: nothing vouches for it until it is whole
            _write(
                self.folder / file_of(part),
                frame.to_csv(index=False, float_format=DIGITS, lineterminator="\n"),
            )
            record["parts"][part] = {
                "seconds": round(seconds, 1),
                "measured": f"{datetime.now(UTC):%Y-%m-%d}",
                "device": _device(),
                "versions": versions(),
                **self.identity,
            }
            self._write_record(record)
            return read_part(self.folder, part)

    def provenance(self) -> dict[str, Any]:
        """What is known of every part, whether or not it still counts."""
        try:
            return read_provenance(self.folder)
        except (FileNotFoundError, ValueError):  # none yet, or damaged: as if there were none
            command = f"orderone reproduce {self.experiment.name} --scale {self.scale}"
            return {
                "experiment": self.experiment.name,
                "scale": self.scale,
                "command": command,
                "parts": {},
            }

    def _write_record(self, record: dict[str, Any]) -> None:
        _write(self.folder / RECORD, json.dumps(record, indent=1) + "\n")

    def _has(self, part: str) -> bool:
        return self._is_ours(self.provenance()["parts"].get(part))

    def _is_ours(self, known: Any) -> bool:
        return (
            isinstance(known, dict)
            and {name: known.get(name) for name in self.identity} == self.identity
        )


def read_records(folder: Path) -> Records:
    """All parts that a folder of one experiment and scale holds."""
    return {part: read_part(folder, part) for part in read_provenance(folder)["parts"]}


def read_provenance(folder: Path) -> dict[str, Any]:
    record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    if not isinstance(record, dict) or not isinstance(record.get("parts"), dict):
        raise ValueError(f"{folder / RECORD}: expected an object with parts; measure again")
    return record


def read_part(folder: Path, part: str) -> pd.DataFrame:
    return pd.read_csv(folder / file_of(part), keep_default_na=False, na_values=["", "nan"])


def file_of(part: str) -> str:
    return part.replace(" ", "-") + ".csv"


def _plain(settings: Any) -> Any:
    """As JSON will give it back, so that both can be compared."""
    return json.loads(json.dumps(asdict(settings), default=str))


def _write(path: Path, text: str) -> None:
    """Whole or not at all, whenever it is interrupted."""
    half = path.with_name(path.name + f".{os.getpid()}.half")
    half.write_text(text, encoding="utf-8", newline="")
    half.replace(path)


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return "CPU"
