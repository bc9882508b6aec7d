"""A table or figure of a paper as something to run: what is claimed, what to measure, how to judge
and how to draw it.

Measuring yields records; judging and drawing only read them, so that stored records can be judged
and drawn again, and made-up ones can test the judge.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

Records = Mapping[str, pd.DataFrame]
Parts = Mapping[str, Callable[[], pd.DataFrame]]

SCALES = (
    "small",
    "gpu",
    "paper",
)  # minutes on two cores; minutes on one large GPU; what the paper did
VERDICTS = ("holds", "holds where clear", "holds in part", "does not hold", "unclear")


@dataclass(frozen=True)
class Finding:
    """What records say of one claim. `holds` is None where they cannot tell. `of`: the paper's
    claim, or what is true instead, with the number of the erratum ("S1.4")."""

    claim: str
    holds: bool | None
    numbers: str
    of: str = "paper"
    erratum: str = ""

    def __post_init__(self) -> None:
        assert self.of in ("paper", "corrected"), self.of


@dataclass(frozen=True)
class Picture:
    """A plotly figure {"data": [...], "layout": {...}}, with words for those who do not see it."""

    title: str
    figure: Mapping[str, Any]
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Grid:
    """A table: its head and its rows, as text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Experiment:
    """`parts(settings)` names what to measure, piece by piece: each piece is kept as soon as it is
    there. Raise `version` when the same settings would give other records than before."""

    name: str  # "s1-figure7"
    title: str
    claim: str  # the paper's, in our words
    method: str  # how it is measured here
    scales: Mapping[
        str, Any
    ]  # settings (frozen dataclasses) of "small" and "paper", and of "gpu" where that differs
    parts: Callable[[Any], Parts]
    judge: Callable[[Records], Sequence[Finding]]
    draw: Callable[[Records], Sequence[Picture | Grid]]
    errata: Sequence[str] = ()
    version: int = 1

    @property
    def paper(self) -> str:
        return self.name[:2].upper()


def verdict(findings: Sequence[Finding], of: str = "paper") -> str:
    """One of VERDICTS for many findings. They hold "where clear" if some of them cannot be told,
    and the others hold."""
    told = Counter(finding.holds for finding in findings if finding.of == of)
    if told[False]:
        if told[True]:
            return "holds in part"
        return "does not hold"
    if not told[True]:
        return "unclear"
    return "holds where clear" if told[None] else "holds"
