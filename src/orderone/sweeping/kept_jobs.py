"""The sweeps in one store. They may differ in their steps, data or code, so that their losses are
not to be compared."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orderone.sweeping.store import reading

SHOWN = 12  # characters of a fingerprint
_JOBS = """
SELECT job, count(*), described FROM trials LEFT JOIN jobs ON fingerprint = job
GROUP BY job ORDER BY jobs.rowid, max(trials.rowid)
"""


@dataclass(frozen=True)
class KeptJob:
    fingerprint: str
    trials: int
    described: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.fingerprint[:SHOWN]

    def unlike(self, other: "KeptJob") -> str:
        """What it has that another has not, in a few words."""
        differing = [
            name for name, value in self.described.items() if other.described.get(name) != value
        ]
        told = [
            f"{name} {value}" if _is_short(value := self.described[name]) else f"another {name}"
            for name in differing
        ]
        return ", ".join([f"{self.trials} trials", *told])


def _is_short(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, (bool, int, float))
        or (isinstance(value, str) and len(value) <= 40)
    )


def read_jobs(path: Any) -> list[KeptJob]:
    """The one that was swept last comes last."""
    with reading(path) as database:
        rows = [] if database is None else database.execute(_JOBS).fetchall()
    return [
        KeptJob(job, trials, json.loads(described) if described else {})
        for job, trials, described in rows
    ]


def chosen(found: Sequence[KeptJob], wanted: Any, path: Any) -> KeptJob:
    """By the beginning of its fingerprint; the newest if none is asked for."""
    if wanted is None:
        return found[-1]
    fitting = [
        job
        for job in found
        if isinstance(wanted, str) and wanted and job.fingerprint.startswith(wanted)
    ]
    if len(fitting) != 1:
        known = ", ".join(job.name for job in found) or "none"
        raise ValueError(
            f"job: expected the beginning of one of those in {path} ({known}), got {wanted!r}"
        )
    return fitting[0]
