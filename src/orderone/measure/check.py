"""The result of a coordinate check: records, exponents, verdicts, and what to think of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

from orderone.measure import records
from orderone.measure.observations import Observations
from orderone.measure.verdict import FAIL, PASS, SHRINKS, UNCLEAR

if TYPE_CHECKING:
    import pandas as pd

    from orderone.measure.alignment_result import MeasuredAlignment

COLUMNS = [
    "module",
    "quantity",
    "step",
    "exponent",
    "low",
    "high",
    "predicted",
    "verdict",
    "cause",
    "role",
]


@dataclass(frozen=True)
class Judgement:
    """One line of `exponents`."""

    module: str
    quantity: str
    step: int
    exponent: float
    low: float
    high: float
    predicted: float
    verdict: str
    cause: str
    role: str


@dataclass
class Check:
    """Print it, look at `exponents` and `frame`, `save` it, give it to `orderone.report`."""

    observations: Observations = field(repr=False)
    judgements: Sequence[Judgement] = field(repr=False)
    verdict: str
    causes: list[str]  # of FAIL and UNCLEAR, the likeliest first
    notes: list[str]
    provenance: dict[str, Any]
    interrupted: bool = False

    @property
    def passed(self) -> bool:
        return self.verdict == PASS

    @property
    def axis(self) -> str:
        return self.observations.axis

    @cached_property
    def frame(self) -> "pd.DataFrame":
        """One line for each run, step, module (or tensor) and quantity: rms, mean, largest
        absolute, finite fraction."""
        return self.observations.frame(self.provenance)

    @cached_property
    def losses(self) -> "pd.DataFrame":
        return self.observations.losses(self.provenance)

    @cached_property
    def alignment(self) -> "MeasuredAlignment | None":
        """omega, alpha and u across the last step of the first seed; `orderone.alignment` measures
        them in full."""
        return self.observations.alignment(self.provenance)

    @cached_property
    def exponents(self) -> "pd.DataFrame":
        """One line for each module (or tensor) and quantity: fitted exponent, interval, prediction,
        verdict, cause."""
        rows = [tuple(getattr(j, column) for column in COLUMNS) for j in self.judgements]
        return records.table(rows, COLUMNS, self.provenance)

    def count(self, verdict: str) -> int:
        return sum(j.verdict == verdict for j in self.judgements)

    def save(self, path: str | PathLike[str]) -> None:
        """The records, as .jsonl or .parquet; `orderone.measure.read` reads them back."""
        records.write(self.frame, path)

    def __str__(self) -> str:
        from orderone.measure.text import render

        return render(self)


__all__ = ["FAIL", "PASS", "SHRINKS", "UNCLEAR", "Check", "Judgement"]
