"""An experiment: a table or figure of a paper with its claim, and functions that measure, judge and
draw.

Measuring yields records. Judging and drawing only read records, so that stored records can be
judged and drawn again, and synthetic records can test the judge.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from orderone.gallery.figures import Figure

Records: TypeAlias = Mapping[str, pd.DataFrame]
Parts: TypeAlias = Mapping[str, Callable[[], pd.DataFrame]]

# minutes on two cores; minutes on one large GPU; the sizes of the paper
SCALES = ("small", "gpu", "paper")
VERDICTS = ("holds", "holds, some undecided", "holds in part", "does not hold", "unclear")


# Whose claim a finding is about, and the words for it.
SOURCES = {"paper": "the paper", "corrected": "corrected", "ours": "ours, not in the paper"}


@dataclass(frozen=True)
class Finding:
    """Verdict of the records on one claim; `holds` is None if they cannot decide it.

    `of` is "paper" for a claim of the paper, and "corrected" for a corrected claim, which has the
    number of its erratum ("S1.4"). It is "ours" for a statement that the paper assumes, leaves open
    or does not make; it counts for no verdict.
    """

    claim: str
    holds: bool | None
    numbers: str
    of: str = "paper"
    erratum: str = ""

    def __post_init__(self) -> None:
        assert self.of in SOURCES, self.of


@dataclass(frozen=True)
class Picture:
    """A figure for plotly, with a description for screen readers."""

    title: str
    figure: Figure
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Grid:
    """A table: head and rows as text."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Experiment:
    """Claim of a paper, and the functions that test it.

    `parts(settings)` maps the name of each part to the function that measures it; each part is
    stored as soon as it is measured. Increase `version` when the same settings would give other
    records than before.
    """

    name: str  # "s1-figure7"
    title: str
    place: str  # where the paper says so: "Figure 7"
    claim: str  # the claim of the paper, rephrased
    method: str  # how the library measures it
    # settings (frozen dataclasses) of "small" and "paper", and of "gpu" if that differs
    scales: Mapping[str, Any]
    parts: Callable[[Any], Parts]
    judge: Callable[[Records], Sequence[Finding]]
    draw: Callable[[Records], Sequence[Picture | Grid]]
    errata: Sequence[str] = ()
    version: int = 1

    @property
    def paper(self) -> str:
        """Short name of the paper, such as "S1"."""
        return self.name[:2].upper()


def verdict(findings: Sequence[Finding], of: str = "paper") -> str:
    """Return one of VERDICTS for all findings about the "paper" or the "corrected" claims.

    "holds, some undecided" means that some claims cannot be decided and all others hold.
    """
    counts = Counter(finding.holds for finding in findings if finding.of == of)
    if counts[False] and counts[True]:
        return "holds in part"
    if counts[False]:
        return "does not hold"
    if not counts[True]:
        return "unclear"
    if counts[None]:
        return "holds, some undecided"
    return "holds"
