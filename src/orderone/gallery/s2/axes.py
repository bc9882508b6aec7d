"""Axes for small screens: little margin, the legend below everything, one tick for every value
where there are few."""

from typing import Any

LEGEND = {
    "orientation": "h",
    "yref": "container",
    "y": 0,
    "yanchor": "bottom",
    "x": 0,
    "font": {"size": 11},
}
MARGIN = {"t": 16, "r": 12, "l": 56, "b": 40}


def axes(
    x: str, y: str, legend: str = "", height: int = 440, **more: dict[str, Any]
) -> dict[str, Any]:
    """A layout. `more`: settings of xaxis and yaxis."""
    titled = {
        name: {"title": {"text": text}, "automargin": True}
        for name, text in (("xaxis", x), ("yaxis", y))
    }
    below = LEGEND | ({"title": {"text": legend}} if legend else {})
    return {
        "height": height,
        "margin": MARGIN,
        "legend": below,
        **{k: v | more.get(k, {}) for k, v in titled.items()},
    }


def ticks(values: Any) -> dict[str, Any]:
    """A logarithmic axis that names these values and no others."""
    found = sorted({float(value) for value in values})
    return {"type": "log", "tickvals": found, "ticktext": [f"{value:g}" for value in found]}
