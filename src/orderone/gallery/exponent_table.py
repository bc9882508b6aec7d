"""Tables of exponents: each line has the printed, the derived and the measured exponent."""

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

import pandas as pd

from orderone.gallery.experiment import Finding, Grid, Picture
from orderone.gallery.figures import SHADES, panels, scatter, spans
from orderone.gallery.frames import Line
from orderone.gallery.judge import finding, known, together

Entry: TypeAlias = tuple[str, str, str, str, float, float, float]
COLUMNS = ["row", "quantity", "paper", "predicted", "measured", "low", "high"]
FINITE = 0.05  # largest bias of a fit by corrections at finite width
# exponents are multiples of 1/2: an interval as wide as that can refute one but confirm none
TELLING = 0.5
WORDS: dict[bool | None, str] = {True: "holds", False: "FAILS", None: "unclear"}


def line(row: str, quantity: str, paper: Fraction, predicted: Fraction, fit: Line) -> Entry:
    """Return one line of a table: values in the order of COLUMNS."""
    return row, quantity, str(paper), str(predicted), fit.exponent, fit.low, fit.high


def holds(exponent: object, line: Line, bend: float = FINITE) -> bool | None:
    """Judge an exponent by the measured interval; None if it is too wide or missing."""
    if not known([line.low, line.high]):
        return None
    if not line.low - bend <= Fraction(str(exponent)) <= line.high + bend:
        return False
    if line.high - line.low < TELLING:
        return True
    return None


def judged(frame: pd.DataFrame) -> pd.DataFrame:
    """Add columns `paper_holds` and `holds` for the printed and the derived exponents."""
    printed = []
    derived = []
    for _, line in frame.iterrows():
        printed.append(holds(line.paper, line))
        derived.append(holds(line.predicted, line))
    return frame.assign(paper_holds=printed, holds=derived)


def findings(frame: pd.DataFrame, errata: dict[str, str]) -> list[Finding]:
    """Judge the printed exponents of each row, and the derived ones of rows with an erratum.

    `errata` maps a row to the number of its erratum.
    """
    results = []
    for row, lines in judged(frame).groupby("row", sort=False):
        results.append(_finding(f"{row}: the printed exponents", lines, "paper_holds"))
        if row in errata:
            erratum = errata[str(row)]
            results.append(_finding(f"{row}: the derived exponents", lines, "holds", erratum))
    return results


def _finding(claim: str, lines: pd.DataFrame, column: str, erratum: str = "") -> Finding:
    """Join the verdicts of several lines: the claim holds if all lines hold."""
    verdicts = list(lines[column])
    wrong = []
    for verdict, (_, line) in zip(verdicts, lines.iterrows(), strict=True):
        if verdict is False:
            wrong.append(f"{line.quantity} {interval(line)}")
    numbers = f"{verdicts.count(True)} of {len(verdicts)} within the measured intervals"
    if wrong:
        numbers += f"; not {', '.join(wrong)}"
    return finding(claim, together(verdicts), numbers, erratum)


def interval(line: Line) -> str:
    """Return the measured exponent with its interval, as text."""
    return f"{line.measured:+.2f} [{line.low:+.2f}, {line.high:+.2f}]"


def grid(title: str, frame: pd.DataFrame) -> Grid:
    """Return the table as text."""
    rows = []
    for _, line in frame.iterrows():
        paper = WORDS[holds(line.paper, line)]
        derived = WORDS[holds(line.predicted, line)]
        exponents = (str(line.paper), paper, str(line.predicted), derived)
        rows.append((line.row, line.quantity, *exponents, interval(line)))
    head = ("row", "quantity", "paper", "holds?", "derived", "holds?", "measured")
    return Grid(title, head, rows)


def picture(title: str, frame: pd.DataFrame) -> Picture:
    """Draw measured intervals as bars, printed exponents as circles, derived ones as crosses."""
    names = [f"{row} · {quantity}" for row, quantity in zip(frame.row, frame.quantity, strict=True)]
    bars = spans(frame.measured, frame.low, frame.high)
    data = [
        scatter(
            frame.measured,
            names,
            "measured",
            mode="markers",
            error_x=bars,
            marker={"color": SHADES[0]},
        )
    ]
    marks = {
        "paper": ("printed", "circle-open", SHADES[1]),
        "predicted": ("derived", "x-thin-open", SHADES[2]),
    }
    for column, (name, symbol, shade) in marks.items():
        exponents = [float(Fraction(str(each))) for each in frame[column]]
        marker = {"symbol": symbol, "size": 11, "color": shade, "line": {"width": 1.5}}
        data.append(scatter(exponents, names, name, mode="markers", marker=marker))
    layout = panels([""], "exponent of the width", height=90 + 16 * len(frame))
    layout["yaxis1"] |= {"autorange": "reversed", "automargin": True}
    alt = (
        f"Measured exponents of {len(frame)} quantities with intervals, beside the printed and the"
        " derived ones."
    )
    return Picture(title, {"data": data, "layout": layout}, alt)


def drawn(title: str, frame: pd.DataFrame) -> Sequence[Picture | Grid]:
    """Return the figure and the table."""
    return [picture(title, frame), grid(title, frame)]
