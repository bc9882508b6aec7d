"""Parts of figures: a column of panels, which is readable on a phone, lines, marks, error bars."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, TypedDict

import pandas as pd

# Traces and layouts in plotly's vocabulary: nested dictionaries of plain values.
Trace: TypeAlias = dict[str, Any]
Layout: TypeAlias = dict[str, Any]

# Colours that are visible on light and dark backgrounds and distinct for most readers.
SHADES = ("#3b82c4", "#e08a1e", "#3fa66b", "#c2528b", "#8a6fd1", "#9a8b3c")
GREY = "#888888"
# Gap between panels, as a part of the height of three: True if only the last panel has an x title.
GAPS = {True: 0.09, False: 0.15}


class Figure(TypedDict):
    """A figure as plotly reads it."""

    data: list[Trace]
    layout: Layout


def panels(
    titles: Sequence[str],
    x: str | Sequence[str],
    *,
    share: bool = False,
    height: int = 230,
    log: str = "",
) -> Layout:
    """Return a layout with axes x1, y1, x2, y2, ... from the top.

    `titles` are the titles of the y axes. `share`: only the last panel has an x title. `log`: the
    logarithmic axes, "x", "y" or "xy".
    """
    number = len(titles)
    xs = [x] * number if isinstance(x, str) else list(x)
    gap = GAPS[share] * 3 / max(number, 3)
    tall = (1 - gap * (number - 1)) / number
    layout: Layout = {
        "height": height * number + 130,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "margin": {"l": 60, "r": 15, "t": 90, "b": 50},
    }
    for i, title in enumerate(titles):
        bottom = 1 - (i + 1) * tall - i * gap
        x_title = "" if share and i < number - 1 else xs[i]
        x_axis = {"anchor": f"y{i + 1}", "title": {"text": x_title}}
        y_axis = {
            "anchor": f"x{i + 1}",
            "title": {"text": title},
            "domain": [max(0.0, bottom), min(1.0, bottom + tall)],
        }
        layout[f"xaxis{i + 1}"] = x_axis
        layout[f"yaxis{i + 1}"] = y_axis
        for axis in log:
            layout[f"{axis}axis{i + 1}"]["type"] = "log"
    return layout


def scatter(
    x: Iterable[object],
    y: Iterable[object],
    name: str = "",
    *,
    row: int = 0,
    mode: str = "lines",
    **style: object,
) -> Trace:
    """Return a line or points in the panel `row`; the legend lists it if it has a name."""
    return {
        "type": "scatter",
        "mode": mode,
        "x": list(x),
        "y": list(y),
        "name": name,
        "showlegend": bool(name),
        "xaxis": f"x{row + 1}",
        "yaxis": f"y{row + 1}",
        **style,
    }


def spans(middle: pd.Series, low: pd.Series, high: pd.Series) -> Trace:
    """Return error bars from `low` to `high`."""
    return {
        "type": "data",
        "symmetric": False,
        "thickness": 1,
        "width": 2,
        "array": (high - middle).to_list(),
        "arrayminus": (middle - low).to_list(),
    }
