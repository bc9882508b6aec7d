"""Plan files: JSON with a format version. Reading one runs no code: it has no pickles."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from os import PathLike
from pathlib import Path

from orderone.core.errors import InputError
from orderone.core.schema import Limits, SchemaError, read_json, read_record
from orderone.planning.plan import Multiplier, Plan, Settings
from orderone.planning.plan_row import Row

FORMAT = "orderone plan"
VERSION = 1
LARGEST = 3.4e38  # of float32
_AT_LEAST_0 = (f"0 or more, and at most {LARGEST:g}", lambda number: 0 <= number <= LARGEST)
_NOT_0 = (f"not 0, and at most {LARGEST:g}", lambda number: 0 < abs(number) <= LARGEST)
_POSITIVE = (f"more than 0, and at most {LARGEST:g}", lambda number: 0 < number <= LARGEST)
LIMITS: Limits = {
    **dict.fromkeys(("lr", "weight_decay", "eps", "init_std", "base_std"), _AT_LEAST_0),
    **dict.fromkeys(("shape", "base_shape", "axis", "ranges", "std", "init"), _AT_LEAST_0),
    **dict.fromkeys(("fan_in", "fan_out"), _AT_LEAST_0),  # a ratio, or the number of an axis
    **dict.fromkeys(("depth", "own_depth", "gradient", "batch", "tokens"), _POSITIVE),
    **dict.fromkeys(("axes", "critical_batch", "size", "order_one", "parts"), _POSITIVE),
    **dict.fromkeys(("multiplier", "carried_multiplier", "gauge", "value"), _NOT_0),
    "betas": _AT_LEAST_0,  # those of a row, or factors of 1 - beta
}


@dataclass(frozen=True)
class PlanFile:
    """Fields of a plan file and their types."""

    format: str
    version: int
    headline: str
    settings: Settings
    applied: bool
    looked: str  # Plan.probe_summary
    notes: tuple[str, ...]
    multipliers: tuple[Multiplier, ...]
    rows: tuple[Row, ...]
    undone: tuple[str, ...] = ()
    checksum: str | None = None  # files of version 0.1 have none


def save(plan: Plan, path: str | PathLike[str]) -> None:
    """Write a plan file; raise an InputError if the plan has numbers that are not finite."""
    text = json.dumps(as_record(plan), indent=1) + "\n"
    try:
        read_record(PlanFile, json.loads(text), "", LIMITS)
    except SchemaError as error:
        raise InputError(f"the plan cannot be saved: {error}", "not-a-plan-file") from error
    Path(path).write_text(text, encoding="utf-8")


def as_record(plan: Plan) -> dict[str, object]:
    """Return the content of a plan file."""
    record: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "headline": plan.headline,
        "settings": asdict(plan.settings),
        "applied": plan.applied,
        "looked": plan.probe_summary,
        "notes": plan.notes,
        "undone": plan.undone,
        "multipliers": [asdict(multiplier) for multiplier in plan.multipliers],
        "rows": [asdict(row) for row in plan.rows],
    }
    record["checksum"] = _checksum(record)
    return record


def load(path: str | PathLike[str]) -> Plan:
    """Read a plan file; raise an InputError that names the file and the field that is wrong."""
    content = _read_content(path)
    return Plan(
        settings=content.settings,
        rows=content.rows,
        headline=content.headline,
        notes=content.notes,
        undone=content.undone,
        multipliers=content.multipliers,
        probe_summary=content.looked,
        was_applied=content.applied,
    )


def _read_content(path: str | PathLike[str]) -> PlanFile:
    """Return the validated content of a plan file."""
    try:
        record = read_json(path)
    except ValueError as error:
        raise _damaged(path, f"expected JSON, written by plan.save: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise _damaged(path, "expected a plan file, written by plan.save")
    if record.get("version") != VERSION:
        raise _damaged(
            path,
            f"expected format version {VERSION}, got {record.get('version')!r}; read it with the"
            " version of orderone that wrote it",
        )
    try:
        content = read_record(PlanFile, record, "", LIMITS)
    except SchemaError as error:
        raise _damaged(path, f"the plan file is damaged: {error}") from error
    _check_content(content, path)
    if content.checksum is not None and content.checksum != _checksum(record):
        raise _damaged(
            path,
            "the plan file is damaged: its field checksum does not belong to its content; if you"
            " have edited the file, remove this field",
        )
    return content


def _check_content(content: PlanFile, path: str | PathLike[str]) -> None:
    """Raise an InputError for values that have the right type and no meaning."""
    names = [row.name for row in content.rows]
    if len(set(names)) != len(names):
        raise _damaged(path, "the plan file is damaged: rows: expected every tensor once")
    if not all(multiplier.side in ("input", "output") for multiplier in content.multipliers):
        raise _damaged(path, "the plan file is damaged: multipliers: expected side input or output")
    for number, row in enumerate(content.rows):
        if not all(beta < 1 for beta in row.betas or ()):
            raise _damaged(
                path,
                f"the plan file is damaged: rows[{number}].betas: expected numbers less than 1, got"
                f" {list(row.betas or ())}",
            )


def _damaged(path: str | PathLike[str], message: str) -> InputError:
    return InputError(f"{path}: {message}", "not-a-plan-file", argument="path")


def _checksum(record: Mapping[str, object]) -> str:
    """Return the SHA-256 of everything but the checksum."""
    content = {name: value for name, value in record.items() if name != "checksum"}
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
