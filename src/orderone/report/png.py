"""The same small panels through matplotlib: a picture for a paper or a README, worst modules
first."""

import math
from os import PathLike
from pathlib import Path
from typing import Any

from orderone.core.errors import one_of
from orderone.report import small_panel
from orderone.report.cube import Cube, cube
from orderone.report.optional import need
from orderone.report.small_panel import GREY, INK
from orderone.report.verdicts import ORDER, first_quantity, ranked

MOST = 24  # panels that a page can hold and an eye can take in
COLUMNS = 4
WIDTH = 2.85
HEIGHT = 1.95
HEAD = 0.72
FOOT = 0.27  # inches: a panel's, the title's and the last line's


def write_png(
    r: Any, path: str | PathLike[str], quantity: str | None = None, title: str = "Coordinate check"
) -> Path:
    """Draws at most 24 modules, and says how many are left out. `quantity` is the one with the
    worst verdict if None."""
    figure = need("matplotlib.figure", "png").Figure(dpi=150, facecolor="white")
    # a canvas of its own: pyplot's state and backend stay as they are
    canvas = need("matplotlib.backends.backend_agg", "png").FigureCanvasAgg(figure)
    _draw(figure, r, cube(r), quantity, title)
    canvas.print_png(path)
    return Path(path)


def _draw(figure: Any, r: Any, records: Cube, quantity: str | None, title: str) -> None:
    quantity = _quantity(r, records, quantity)
    rows = _rows(r, records, quantity)
    shown = rows[:MOST]
    left_out = rows[MOST:]
    columns = min(COLUMNS, max(3, len(shown)))  # the title needs the room of three
    lines = math.ceil(len(shown) / columns)
    figure.set_size_inches(
        columns * WIDTH + 0.15, lines * HEIGHT + HEAD + (2 * FOOT if left_out else FOOT)
    )
    for k, row in enumerate(shown):
        axes = figure.add_axes(_place(figure, k, columns))
        small_panel.draw(axes, records, row, r.axis if k + columns >= len(shown) else "")
    _head(
        figure,
        r,
        f"{r.axis} across, RMS of {quantity} up, both logarithmic; {_steps(shown)}",
        title,
    )
    _foot(figure, left_out)


def _quantity(r: Any, records: Cube, quantity: str | None) -> str:
    if quantity is None:
        return first_quantity(r)
    if quantity in records.quantities:
        return quantity
    return one_of(quantity, records.quantities, "quantity")


def _rows(r: Any, records: Cube, quantity: str) -> list[dict]:
    """A verdict for each module; those that nobody judged come last, so that they are not taken for
    absent."""
    table = ranked(r).query("quantity == @quantity").drop_duplicates(subset=["module"])
    rows: list[dict] = table.to_dict("records")
    seen = {row["module"] for row in rows}
    q = records.quantities.index(quantity)
    rest = [
        name for m, name in enumerate(records.modules) if records.known[m, q] and name not in seen
    ]
    blank = dict.fromkeys(("step", "exponent", "low", "high", "predicted"), math.nan) | {
        "verdict": ""
    }
    return rows + [{"module": name, "quantity": quantity} | blank for name in rest]


def _place(figure: Any, k: int, columns: int) -> tuple[float, float, float, float]:
    """Inches from the corner, so that text of a given size always has the room it needs."""
    width, height = figure.get_size_inches()
    left = (k % columns) * WIDTH + 0.5
    bottom = height - HEAD - (k // columns + 1) * HEIGHT + 0.2
    return (
        float(left / width),
        float(bottom / height),
        float((WIDTH - 0.57) / width),
        float((HEIGHT - 0.68) / height),
    )


def _steps(rows: list[dict]) -> str:
    steps = {row["step"] for row in rows if row["verdict"]}
    if len(steps) == 1:
        return f"step {steps.pop():g}"
    return "each at the step of its worst verdict"


def _head(figure: Any, r: Any, subtitle: str, title: str) -> None:
    width, height = figure.get_size_inches()
    left = 0.14 / width
    top = 1 - 0.12 / height
    heading = small_panel.text(
        figure, left, top, title, fontsize=15, weight="bold", va="top", color=INK
    )
    at = heading.get_window_extent(figure.canvas.get_renderer()).x1 / figure.bbox.width
    small_panel.badge(
        figure, at + 0.16 / width, 1 - 0.225 / height, r.verdict, fontsize=11, va="center"
    )
    small_panel.text(figure, left, 1 - 0.43 / height, subtitle, fontsize=9.5, va="top", color=GREY)
    small_panel.legend(figure, 1 - 0.1 / width, 1 - 0.16 / height)


def _foot(figure: Any, left_out: list[dict]) -> None:
    if not left_out:
        return
    counts = {word: sum(row["verdict"] == word for row in left_out) for word in ORDER}
    words = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    line = f"{len(left_out)} more modules are left out" + (f" ({words})" if words else "")
    width, height = figure.get_size_inches()
    small_panel.text(
        figure, 0.14 / width, 0.08 / height, line, fontsize=9.5, va="bottom", color=GREY
    )
