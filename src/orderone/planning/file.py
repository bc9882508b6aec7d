"""Plan files: JSON with a format version. Reading one runs no code: it has no pickles."""

import json
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from orderone.core.errors import InputError
from orderone.core.roles import Role
from orderone.planning.plan import Block, Multiplier, Plan, Row, Settings
from orderone.rules.parameterizations import Factors, Growth

FORMAT = "orderone plan"
VERSION = 1


def save(plan: Plan, path: str | PathLike[str]) -> None:
    """Write a plan file."""
    Path(path).write_text(json.dumps(as_record(plan), indent=1) + "\n")


def as_record(plan: Plan) -> dict[str, object]:
    """Return the content of a plan file."""
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
    """Read a plan file; raise an InputError if it is none."""
    try:
        record = json.loads(Path(path).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        message = f"{path}: expected a plan file (JSON), written by plan.save: {error}"
        raise InputError(message, "not-a-plan-file", argument="path") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        message = f"{path}: expected a plan file, written by plan.save"
        raise InputError(message, "not-a-plan-file", argument="path")
    if record.get("version") != VERSION:
        message = (
            f"{path}: expected format version {VERSION}, got {record.get('version')}; read it with"
            " the version of orderone that wrote it"
        )
        raise InputError(message, "not-a-plan-file", argument="path")
    try:
        return _from_record(record)
    except (KeyError, TypeError, ValueError) as error:
        message = f"{path}: the plan file is damaged: {error}"
        raise InputError(message, "not-a-plan-file", argument="path") from error


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
            "blocks": tuple(_block(block) for block in record.get("blocks", ())),
        }
    )


def _block(record: dict[str, Any]) -> Block:
    ranges = tuple((first, last) for first, last in record["ranges"])
    factors = Factors(**record["factors"])
    return Block(**_tuples(record) | {"ranges": ranges, "factors": factors})


def _tuples(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with tuples in place of the lists of JSON."""
    result: dict[str, Any] = {}
    for key, value in record.items():
        result[key] = tuple(value) if isinstance(value, list) else value
    return result
