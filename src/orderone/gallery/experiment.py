"""An experiment: a table or figure of a paper with its claim, what to measure, and how to judge and
draw it.

Measuring yields records; judging and drawing only read them, so that stored records can be judged
and drawn again, and made-up ones can test the judge.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from orderone.gallery.figures import Figure

Records: TypeAlias = Mapping[str, pd.DataFrame]
Parts: TypeAlias = Mapping[str, Callable[[], pd.DataFrame]]

# minutes on two cores; minutes on one large GPU; what the paper did
SCALES = ("small", "gpu", "paper")
VERDICTS = ("holds", "holds where clear", "holds in part", "does not hold", "unclear")


@dataclass(frozen=True)
class Finding:
    """Verdict of the records on one claim; `holds` is None where they cannot tell.

    `of` is "paper" for the paper's claim, and "corrected" for what is true instead, with the number
    of the erratum ("S1.4").
    """

    claim: str
    holds: bool | None
    numbers: str
    of: str = "paper"
    erratum: str = ""

    def __post_init__(self) -> None:
        assert self.of in ("paper", "corrected"), self.of


@dataclass(frozen=True)
class Picture:
    """A figure for plotly, with words for those who do not see it."""

    title: str
    figure: Figure
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
    """Claim of a paper, and how it is tested.

    `parts(settings)` names what to measure, piece by piece: each piece is stored as soon as it is
    measured. Raise `version` when the same settings would give other records than before.
    """

    name: str  # "s1-figure7"
    title: str
    claim: str  # the paper's, in our words
    method: str  # how it is measured here
    # settings (frozen dataclasses) of "small" and "paper", and of "gpu" where that differs
    scales: Mapping[str, Any]
    parts: Callable[[Any], Parts]
    judge: Callable[[Records], Sequence[Finding]]
    draw: Callable[[Records], Sequence[Picture | Grid]]
    errata: Sequence[str] = ()
    version: int = 1

    @property
    def paper(self) -> str:
        """Name of the paper: "S1"."""
        return self.name[:2].upper()


def verdict(findings: Sequence[Finding], of: str = "paper") -> str:
    """Return one of VERDICTS for all findings about the "paper" or the "corrected" claims.

    They hold "where clear" if some of them cannot be decided, and the others hold.
    """
    counts = Counter(finding.holds for finding in findings if finding.of == of)
    if counts[False] and counts[True]:
        return "holds in part"
    if counts[False]:
        return "does not hold"
    if not counts[True]:
        return "unclear"
    if counts[None]:
        return "holds where clear"
    return "holds"
