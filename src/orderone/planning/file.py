"""Plan files: JSON with a format version. Reading one runs nothing: no pickle, no import by
name."""

import json
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from orderone.core.roles import Role
from orderone.planning.plan import Multiplier, Plan, Row, Settings
from orderone.rules.parameterizations import Factors, Growth

FORMAT = "orderone plan"
VERSION = 1


def save(plan: Plan, path: str | PathLike[str]) -> None:
    Path(path).write_text(json.dumps(as_record(plan), indent=1) + "\n")


def as_record(plan: Plan) -> dict[str, object]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "headline": plan.headline,
        "settings": asdict(plan.settings),
        "applied": plan.applied,
        "looked": plan.looked,
        "notes": plan.notes,
        "undone": plan.undone,
        "multipliers": [asdict(multiplier) for multiplier in plan.multipliers],
        "rows": [asdict(row) for row in plan.rows],
    }


def load(path: str | PathLike[str]) -> Plan:
    try:
        record = json.loads(Path(path).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path}: expected a plan file (JSON), got something else: {error}"
        ) from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ValueError(f"{path}: expected a plan file, written by plan.save")
    if record.get("version") != VERSION:
        raise ValueError(
            f"{path}: expected format version {VERSION}, got {record.get('version')}; it needs"
            " another orderone"
        )
    try:
        return _from_record(record)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: the plan file is damaged: {error}") from error


def _from_record(record: dict[str, Any]) -> Plan:
    return Plan(
        settings=Settings(**_tuples(record["settings"])),
        rows=tuple(_row(row) for row in record["rows"]),
        headline=record["headline"],
        notes=tuple(record["notes"]),
        undone=tuple(record.get("undone", ())),
        multipliers=tuple(Multiplier(**m) for m in record["multipliers"]),
        looked=record["looked"],
        was_applied=record["applied"],
    )


def _row(record: dict[str, Any]) -> Row:
    return Row(
        **_tuples(record)
        | {
            "role": Role(record["role"]),
            "factors": Factors(**record["factors"]),
            "growth": Growth(**record["growth"]),
        }
    )


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where rows have tuples."""
    result: dict[str, Any] = {}
    for key, value in record.items():
        result[key] = tuple(value) if isinstance(value, list) else value
    return result
