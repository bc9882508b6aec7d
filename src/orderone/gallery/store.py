"""Records on disk: a folder per experiment and scale with a CSV file per part and the provenance.

A stored part counts only if it can be read and was measured with the same settings by the same
version of the experiment. A folder never has parts of different settings: the first part with new
settings invalidates the others. Several runs may share a folder at the same time: each measures
parts that no other run is measuring, and no run loses what another has written.
"""

import json
import os
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from orderone.core.errors import InputError
from orderone.core.locks import locked
from orderone.core.schema import read_json
from orderone.gallery.experiment import Experiment, Records
from orderone.measure.records import VERSIONS

SHIPPED = Path(__file__).parent / "results"  # records that are part of the package
DIGITS = "%.7g"
RECORD = "provenance.json"
Provenance: TypeAlias = dict[str, Any]  # as JSON: experiment, scale, command, parts


class RecordStore:
    """The records of an experiment at one scale, below `folder`."""

    folder: Path
    identity: dict[str, object]  # settings and version that stored parts must have
    experiment: Experiment
    scale: str

    def __init__(self, folder: Path, experiment: Experiment, scale: str, settings: Any) -> None:
        self.folder = folder / experiment.name / scale
        self.identity = {"settings": _as_json(settings), "version": experiment.version}
        self.experiment = experiment
        self.scale = scale

    def get(self, part: str) -> pd.DataFrame | None:
        """Return a stored part, or None if it has to be measured."""
        if not self._has(part):
            return None
        try:
            frame = read_part(self.folder, part)
        except (OSError, ValueError):  # missing or damaged: measure it again
            return None
        if not self._has(part):  # meanwhile a run with other settings may have replaced it
            return None
        return frame

    def claim(self, part: str, wait: bool) -> AbstractContextManager[bool]:
        """Reserve a part for this run.

        The context is False if another run has reserved the part and `wait` is False.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        return locked(self.folder / (file_of(part) + ".lock"), wait)

    def put(self, part: str, frame: pd.DataFrame, seconds: float) -> pd.DataFrame:
        """Store a part; return it as a later run will read it, with the same digits."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / (RECORD + ".lock")):
            record = self.provenance()  # includes parts that other runs have added
            parts = {}
            for name, known in record["parts"].items():
                if name != part and self._is_ours(known):
                    parts[name] = known
            record["parts"] = parts
            self._write_record(record)  # first, so that a half-written file is never listed
            text = frame.to_csv(index=False, float_format=DIGITS, lineterminator="\n")
            _write(self.folder / file_of(part), text)
            parts[part] = {
                "seconds": round(seconds, 1),
                "measured": f"{datetime.now(UTC):%Y-%m-%d}",
                "device": _device(),
                "versions": VERSIONS,
                **self.identity,
            }
            self._write_record(record)
            return read_part(self.folder, part)

    def provenance(self) -> Provenance:
        """Return the provenance of every stored part, valid or not."""
        try:
            return read_provenance(self.folder)
        except (FileNotFoundError, ValueError):  # missing or damaged: start with no parts
            command = f"orderone reproduce {self.experiment.name} --scale {self.scale}"
            return {
                "experiment": self.experiment.name,
                "scale": self.scale,
                "command": command,
                "parts": {},
            }

    def _write_record(self, record: Provenance) -> None:
        _write(self.folder / RECORD, json.dumps(record, indent=1) + "\n")

    def _has(self, part: str) -> bool:
        return self._is_ours(self.provenance()["parts"].get(part))

    def _is_ours(self, known: object) -> bool:
        if not isinstance(known, dict):
            return False
        return all(known.get(name) == value for name, value in self.identity.items())


def read_records(folder: Path) -> Records:
    """Read all parts in a folder of one experiment and scale."""
    return {part: read_part(folder, part) for part in read_provenance(folder)["parts"]}


def read_provenance(folder: Path) -> Provenance:
    """Read the provenance of a folder of one experiment and scale."""
    path = folder / RECORD
    try:
        record = read_json(path)
    except ValueError as error:
        raise InputError(
            f"{path}: expected JSON: {error}; measure again", "damaged-file"
        ) from error
    if not isinstance(record, dict) or not isinstance(record.get("parts"), dict):
        message = f"{path}: expected a JSON object with parts; measure again"
        raise InputError(message, "damaged-file")
    return record


def read_part(folder: Path, part: str) -> pd.DataFrame:
    """Read one part from its file."""
    path = folder / file_of(part)
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=["", "nan"])
    except ValueError as error:  # of pandas and of the text encoding
        raise InputError(
            f"{path}: expected a table: {error}; measure again", "damaged-file"
        ) from error


def file_of(part: str) -> str:
    """Return the name of a part's file."""
    return part.replace(" ", "-") + ".csv"


def _as_json(settings: Any) -> object:
    """Return settings after a round trip through JSON, to compare them with stored ones."""
    return json.loads(json.dumps(asdict(settings), default=str))


def _write(path: Path, text: str) -> None:
    """Write a file atomically: an interrupted run leaves no half-written file."""
    half = path.with_name(path.name + f".{os.getpid()}.half")
    half.write_text(text, encoding="utf-8", newline="")
    half.replace(path)


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return "CPU"
