"""Layouts that several pictures share: panels below one another, which stay readable on a phone."""

from collections.abc import Sequence
from typing import Any

# Mid-tones that show on light and on dark ground, told apart by most eyes.
SHADES = ("#3b82c4", "#e08a1e", "#3fa66b", "#c2528b", "#8a6fd1", "#9a8b3c")
GREY = "#888888"
GAP = 0.09  # of the height, between two panels


def panels(
    titles: Sequence[str], x: str | Sequence[str], *, share: bool = False, height: int = 230, log: str = ""
) -> dict[str, Any]:
    """Axes x1, y1, x2, y2, ... from the top, with the titles of the y axes. `share`: one title for x, below the last.

    `log`: which of "x" and "y" are logarithmic.
    """
    number = len(titles)
    xs = [x] * number if isinstance(x, str) else list(x)
    gap = (GAP if share else 1.6 * GAP) * 3 / max(number, 3)
    tall = (1 - gap * (number - 1)) / number
    layout: dict[str, Any] = {
        "height": height * number + 130,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "margin": {"l": 60, "r": 15, "t": 90, "b": 50},
    }
    for i, title in enumerate(titles):
        bottom = 1 - (i + 1) * tall - i * gap
        named = not share or i == number - 1
        layout[f"xaxis{i + 1}"] = {"anchor": f"y{i + 1}", "title": {"text": xs[i] if named else ""}}
        layout[f"yaxis{i + 1}"] = {"anchor": f"x{i + 1}", "title": {"text": title}}
        layout[f"yaxis{i + 1}"]["domain"] = [max(0.0, bottom), min(1.0, bottom + tall)]
        for axis in log:
            layout[f"{axis}axis{i + 1}"]["type"] = "log"
        if share and i:
            layout[f"xaxis{i + 1}"]["matches"] = "x"
    return layout
