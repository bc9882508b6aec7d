"""Pieces of pictures: panels below one another, which stay readable on a phone, lines and marks in
them, error bars."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

# Mid-tones that show on light and on dark ground, told apart by most eyes.
SHADES = ("#3b82c4", "#e08a1e", "#3fa66b", "#c2528b", "#8a6fd1", "#9a8b3c")
GREY = "#888888"
GAPS = {
    True: 0.09,
    False: 0.15,
}  # of the height of three panels: without and with a title of x between two


def panels(
    titles: Sequence[str],
    x: str | Sequence[str],
    *,
    share: bool = False,
    height: int = 230,
    log: str = "",
) -> dict[str, Any]:
    """Axes x1, y1, x2, y2, ... from the top. `titles` are those of y; `share`: one title for x,
    below the last.

    `log`: which of "x" and "y" are logarithmic.
    """
    number = len(titles)
    xs = [x] * len(titles) if isinstance(x, str) else list(x)
    gap = GAPS[share] * 3 / max(number, 3)
    tall = (1 - gap * (number - 1)) / number
    layout: dict[str, Any] = {
        "height": height * number + 130,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "margin": {"l": 60, "r": 15, "t": 90, "b": 50},
    }
    for i, title in enumerate(titles):
        bottom = 1 - (i + 1) * tall - i * gap
        words = xs[i] if not share or i == number - 1 else ""
        layout[f"xaxis{i + 1}"] = {"anchor": f"y{i + 1}", "title": {"text": words}}
        layout[f"yaxis{i + 1}"] = {"anchor": f"x{i + 1}", "title": {"text": title}}
        layout[f"yaxis{i + 1}"]["domain"] = [max(0.0, bottom), min(1.0, bottom + tall)]
        for axis in log:
            layout[f"{axis}axis{i + 1}"]["type"] = "log"
    return layout


def scatter(
    x: Iterable[Any],
    y: Iterable[Any],
    name: str = "",
    *,
    row: int = 0,
    mode: str = "lines",
    **style: Any,
) -> dict[str, Any]:
    """In the panel `row`; in the legend if it has a name."""
    trace = {
        "type": "scatter",
        "mode": mode,
        "x": list(x),
        "y": list(y),
        "name": name,
        "showlegend": bool(name),
    }
    return trace | {"xaxis": f"x{row + 1}", "yaxis": f"y{row + 1}"} | style


def spans(middle: pd.Series, low: pd.Series, high: pd.Series) -> dict[str, Any]:
    """Error bars."""
    ends = {"array": (high - middle).to_list(), "arrayminus": (middle - low).to_list()}
    return {"type": "data", "symmetric": False, "thickness": 1, "width": 2} | ends
