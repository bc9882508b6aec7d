"""Sweeps in one store.

They may differ in their steps, data or code, so that their losses cannot be compared.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orderone.core.errors import InputError
from orderone.core.inputs import Name
from orderone.sweeping.store import StorePath, reading

NAME_LENGTH = 12  # characters of a fingerprint in messages
LONGEST = 40  # characters of a setting in messages; longer ones are not printed
_JOBS = """
SELECT job, count(*), described FROM trials LEFT JOIN jobs ON fingerprint = job
GROUP BY job ORDER BY jobs.rowid, max(trials.rowid)
"""


@dataclass(frozen=True)
class StoredJob:
    """Sweep in a store: its fingerprint, and the settings that the fingerprint is made from."""

    fingerprint: str
    trials: int
    described: Mapping[str, object]

    @property
    def name(self) -> str:
        return self.fingerprint[:NAME_LENGTH]

    def difference(self, other: "StoredJob") -> str:
        """Return a short text with the settings in which this job differs from another."""
        parts = [f"{self.trials} trials"]
        for name, value in self.described.items():
            if other.described.get(name) == value:
                continue
            parts.append(f"{name} {value}" if _is_short(value) else f"different {name}")
        return ", ".join(parts)


def _is_short(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST
    return value is None or isinstance(value, (bool, int, float))


def read_jobs(path: StorePath) -> list[StoredJob]:
    """Return all sweeps of a store; the one that was run last comes last."""
    with reading(path) as database:
        if database is None:
            rows = []
        else:
            rows = database.execute(_JOBS).fetchall()
    jobs: list[StoredJob] = []
    for fingerprint, trials, described in rows:
        jobs.append(StoredJob(fingerprint, trials, _described(described)))
    return jobs


def _described(text: object) -> Mapping[str, object]:
    """Read the settings of a job; {} if they are missing or damaged.

    They only explain how sweeps differ.
    """
    try:
        if isinstance(text, str):
            described = json.loads(text)
        else:
            described = {}
    except ValueError:
        return {}
    return described if isinstance(described, dict) else {}


def choose_job(jobs: Sequence[StoredJob], beginning: Name | None, path: StorePath) -> StoredJob:
    """Return the job whose fingerprint starts with `beginning`; the newest for None."""
    if beginning is None:
        return jobs[-1]
    fitting: list[StoredJob] = []
    if isinstance(beginning, str) and beginning:
        fitting = [job for job in jobs if job.fingerprint.startswith(beginning)]
    if len(fitting) != 1:
        known = ", ".join(job.name for job in jobs) or "none"
        raise InputError(
            f"job: expected the start of one fingerprint in {path} ({known}), got {beginning!r}",
            "unknown-name",
            argument="job",
        )
    return fitting[0]
