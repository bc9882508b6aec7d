"""Tables of exponents: the printed one, the derived one, and the measured one with its interval, line by line."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pandas as pd

from orderone.gallery.experiment import Finding, Grid, Picture

COLUMNS = ["row", "quantity", "paper", "predicted", "measured", "low", "high"]
FINITE = 0.05  # by how much corrections at finite width may bend a fit
TELLING = 0.5  # exponents come in steps of 1/2: an interval as wide as that can refute one, but confirms none


def line(row: str, quantity: str, paper: Fraction, predicted: Fraction, fit: pd.Series) -> tuple:
    return row, quantity, str(paper), str(predicted), fit.exponent, fit.low, fit.high


def holds(exponent: object, line: pd.Series, bend: float = FINITE) -> bool | None:
    """By the measured interval; None where it is too wide to tell."""
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
    """Row by row: the printed exponents, and where they differ or fail, the derived ones. `errata`: row to number."""
    found = []
    for row, lines in judged(frame).groupby("row", sort=False):
        found.append(_finding(f"{row}: the printed exponents", lines, "paper_holds"))
        if row in errata:
            found.append(_finding(f"{row}: the derived exponents", lines, "holds", "corrected", errata[str(row)]))
    return found


def _finding(claim: str, lines: pd.DataFrame, column: str, of: str = "paper", erratum: str = "") -> Finding:
    """Of several lines: refuted by one, unclear by one."""
    told = list(lines[column])
    wrong = lines[[each is False for each in told]]
    said = ", ".join(
        f"{each.quantity} {each.measured:+.2f} [{each.low:+.2f}, {each.high:+.2f}]" for _, each in wrong.iterrows()
    )
    numbers = f"{told.count(True)} of {len(told)} within the measured intervals" + (f"; not {said}" if said else "")
    return Finding(claim, False if False in told else None if None in told else True, numbers, of, erratum)


def interval(line: Any) -> str:
    return f"{line.measured:+.2f} [{line.low:+.2f}, {line.high:+.2f}]"


def grid(title: str, frame: pd.DataFrame) -> Grid:
    words = {True: "holds", False: "FAILS", None: "unclear"}
    rows = [
        (e.row, e.quantity, str(e.paper), words[e.paper_holds], str(e.predicted), words[e.holds], interval(e))
        for _, e in judged(frame).iterrows()
    ]
    return Grid(title, ("row", "quantity", "paper", "holds?", "derived", "holds?", "measured"), rows)


def picture(title: str, frame: pd.DataFrame) -> Picture:
    """Measured intervals as bars; printed exponents as open circles, derived ones as crosses."""
    names = pd.Series([f"{row} · {quantity}" for row, quantity in zip(frame.row, frame.quantity, strict=True)])
    dots = {"type": "scatter", "mode": "markers", "y": names.to_list()}
    bars = {"type": "data", "symmetric": False}
    bars |= {"array": frame.high - frame.measured, "arrayminus": frame.measured - frame.low}
    data = [dots | {"x": frame.measured, "error_x": bars, "name": "measured, with its interval"}]
    for column, name, symbol in (("paper", "printed", "circle-open"), ("predicted", "derived", "x-thin-open")):
        marker = {"symbol": symbol, "size": 11, "line": {"width": 1.5}}
        data.append(dots | {"x": [float(Fraction(str(e))) for e in frame[column]], "name": name, "marker": marker})
    layout = {
        "height": 220 + 16 * len(frame),
        "xaxis": {"title": {"text": "exponent of the width"}},
        "yaxis": {"autorange": "reversed", "automargin": True},
    }
    alt = f"Measured exponents of {len(frame)} quantities with intervals, beside the printed and the derived ones."
    return Picture(title, {"data": data, "layout": layout}, alt)


def drawn(title: str, frame: pd.DataFrame) -> Sequence[Picture | Grid]:
    return [picture(title, frame), grid(title, frame)]
