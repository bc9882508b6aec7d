"""Tables of exponents: the printed one, the derived one, and the measured one with its interval,
line by line."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pandas as pd

from orderone.gallery.experiment import Finding, Grid, Picture
from orderone.gallery.figures import SHADES, panels, scatter, spans
from orderone.gallery.judge import finding, known, together

COLUMNS = ["row", "quantity", "paper", "predicted", "measured", "low", "high"]
FINITE = 0.05  # by how much corrections at finite width may bend a fit
# exponents come in steps of 1/2: an interval as wide as that can refute one, but confirms none
TELLING = 0.5


def line(row: str, quantity: str, paper: Fraction, predicted: Fraction, fit: pd.Series) -> tuple:
    return row, quantity, str(paper), str(predicted), fit.exponent, fit.low, fit.high


def holds(exponent: object, line: pd.Series, bend: float = FINITE) -> bool | None:
    """By the measured interval; None where it is too wide to tell, or there is none."""
    if not known([line.low, line.high]):
        return None
    if not line.low - bend <= Fraction(str(exponent)) <= line.high + bend:
        return False
    return True if line.high - line.low < TELLING else None


def judged(frame: pd.DataFrame) -> pd.DataFrame:
    """With `paper_holds` and `holds` for the printed and the derived exponents."""
    return frame.assign(
        paper_holds=[holds(each.paper, each) for _, each in frame.iterrows()],
        holds=[holds(each.predicted, each) for _, each in frame.iterrows()],
    )


def findings(frame: pd.DataFrame, errata: dict[str, str]) -> list[Finding]:
    """Row by row: the printed exponents, and where they differ or fail, the derived ones. `errata`:
    row to number."""
    found = []
    for row, lines in judged(frame).groupby("row", sort=False):
        found.append(_finding(f"{row}: the printed exponents", lines, "paper_holds"))
        if row in errata:
            found.append(
                _finding(f"{row}: the derived exponents", lines, "holds", errata[str(row)])
            )
    return found


def _finding(claim: str, lines: pd.DataFrame, column: str, erratum: str = "") -> Finding:
    """Of several lines: refuted by one, unclear by one."""
    told = list(lines[column])
    wrong = lines[[each is False for each in told]]
    said = ", ".join(
        f"{each.quantity} {each.measured:+.2f} [{each.low:+.2f}, {each.high:+.2f}]"
        for _, each in wrong.iterrows()
    )
    numbers = f"{told.count(True)} of {len(told)} within the measured intervals" + (
        f"; not {said}" if said else ""
    )
    return finding(claim, together(told), numbers, erratum)


def interval(line: Any) -> str:
    return f"{line.measured:+.2f} [{line.low:+.2f}, {line.high:+.2f}]"


def grid(title: str, frame: pd.DataFrame) -> Grid:
    words = {True: "holds", False: "FAILS", None: "unclear"}
    rows = [
        (
            e.row,
            e.quantity,
            str(e.paper),
            words[holds(e.paper, e)],
            str(e.predicted),
            words[holds(e.predicted, e)],
            interval(e),
        )
        for _, e in frame.iterrows()
    ]
    return Grid(
        title, ("row", "quantity", "paper", "holds?", "derived", "holds?", "measured"), rows
    )


def picture(title: str, frame: pd.DataFrame) -> Picture:
    """Measured intervals as bars; printed exponents as open circles, derived ones as crosses."""
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
    return [picture(title, frame), grid(title, frame)]
