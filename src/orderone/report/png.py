"""Small panels of a check drawn with matplotlib, for a paper or a README; worst modules first."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, cast

from orderone.core.errors import one_of
from orderone.core.optional import need
from orderone.report import small_panel
from orderone.report.cube import Cube, cube
from orderone.report.inputs import CheckInput, FilePath
from orderone.report.small_panel import GREY, INK, Row
from orderone.report.template import PURPOSE
from orderone.report.verdicts import ORDER, first_quantity, ranked

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = object  # matplotlib is imported when something is drawn

MOST = 24  # panels; more would be hard to read
COLUMNS = 4
# inches
WIDTH = 2.85  # of a panel
HEIGHT = 1.95  # of a panel
HEAD = 0.72  # of the title
FOOT = 0.27  # of the last line


def write_png(
    r: CheckInput,
    path: FilePath,
    quantity: str | None = None,
    title: str = "Coordinate check",
) -> Path:
    """Draw at most 24 modules and a line that counts the others; return the path.

    If `quantity` is None, draw the quantity with the worst verdict.
    """
    figure = need("matplotlib.figure", "png", PURPOSE).Figure(dpi=150, facecolor="white")
    # a separate canvas: the state and backend of pyplot do not change
    canvas = need("matplotlib.backends.backend_agg", "png", PURPOSE).FigureCanvasAgg(figure)
    _draw(figure, r, cube(r), quantity, title)
    canvas.print_png(path)
    return Path(path)


def _draw(
    figure: Figure, check: CheckInput, records: Cube, quantity: str | None, title: str
) -> None:
    if quantity is None:
        quantity = first_quantity(check)
    elif quantity not in records.quantities:
        quantity = one_of(quantity, records.quantities, "quantity")
    rows = _rows(check, records, quantity)
    drawn = rows[:MOST]
    left_out = rows[MOST:]
    columns = min(COLUMNS, max(3, len(drawn)))  # the title needs the width of three panels
    lines = math.ceil(len(drawn) / columns)
    if left_out:
        foot = 2 * FOOT
    else:
        foot = FOOT
    figure.set_size_inches(columns * WIDTH + 0.15, lines * HEIGHT + HEAD + foot)
    for k, row in enumerate(drawn):
        axes = figure.add_axes(_place(figure, k, columns))
        in_last_line = k + columns >= len(drawn)
        small_panel.draw(axes, records, row, check.axis if in_last_line else "")
    subtitle = f"x: {check.axis}; y: RMS of {quantity}; both logarithmic; {_steps(drawn)}"
    _head(figure, check, subtitle, title)
    _foot(figure, left_out)


def _rows(check: CheckInput, records: Cube, quantity: str) -> list[Row]:
    """Return a row for each module; modules without a verdict come last."""
    table = ranked(check).query("quantity == @quantity").drop_duplicates(subset=["module"])
    rows = cast("list[Row]", table.to_dict("records"))
    judged = {row["module"] for row in rows}
    has_records = records.known[:, records.quantities.index(quantity)]
    for module, known in zip(records.modules, has_records, strict=True):
        if known and module not in judged:
            rows.append(small_panel.unjudged_row(module, quantity))
    return rows


def _place(figure: Figure, k: int, columns: int) -> tuple[float, float, float, float]:
    """Return left, bottom, width and height of panel `k` as shares of the figure.

    They are fixed in inches, so that text of a fixed size always fits.
    """
    width, height = figure.get_size_inches()
    left = (k % columns) * WIDTH + 0.5
    bottom = height - HEAD - (k // columns + 1) * HEIGHT + 0.2
    return (
        float(left / width),
        float(bottom / height),
        float((WIDTH - 0.57) / width),
        float((HEIGHT - 0.68) / height),
    )


def _steps(rows: list[Row]) -> str:
    steps = {row["step"] for row in rows if row["verdict"]}
    if len(steps) == 1:
        return f"step {steps.pop():g}"
    return "each at the step of its worst verdict"


def _head(figure: Figure, check: CheckInput, subtitle: str, title: str) -> None:
    width, height = figure.get_size_inches()
    left = 0.14 / width
    top = 1 - 0.12 / height
    heading = small_panel.text(
        figure, left, top, title, fontsize=15, weight="bold", va="top", color=INK
    )
    renderer = figure.canvas.get_renderer()  # pyright: ignore[reportAttributeAccessIssue]: Agg's
    right = heading.get_window_extent(renderer).x1 / figure.bbox.width
    small_panel.badge(
        figure, right + 0.16 / width, 1 - 0.225 / height, check.verdict, fontsize=11, va="center"
    )
    small_panel.text(figure, left, 1 - 0.43 / height, subtitle, fontsize=9.5, va="top", color=GREY)
    small_panel.legend(figure, 1 - 0.1 / width, 1 - 0.16 / height)


def _foot(figure: Figure, left_out: list[Row]) -> None:
    if not left_out:
        return
    counts = []
    for word in ORDER:
        count = sum(row["verdict"] == word for row in left_out)
        if count:
            counts.append(f"{count} {word}")
    line = f"{len(left_out)} more modules are not drawn"
    if counts:
        line += f" ({', '.join(counts)})"
    width, height = figure.get_size_inches()
    small_panel.text(
        figure, 0.14 / width, 0.08 / height, line, fontsize=9.5, va="bottom", color=GREY
    )
