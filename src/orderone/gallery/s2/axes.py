"""Axes for small screens: small margins, the legend at the bottom, and a tick for every value if
there are few."""

from orderone.gallery.figures import Layout
from orderone.gallery.frames import Line

LEGEND: Layout = {
    "orientation": "h",
    "yref": "container",
    "y": 0,
    "yanchor": "bottom",
    "x": 0,
    "font": {"size": 11},
}
MARGIN = {"t": 16, "r": 12, "l": 56, "b": 40}


def axes(x: str, y: str, legend: str = "", height: int = 440, **more: Layout) -> Layout:
    """Return a layout with titles of x and y. `more`: settings of xaxis and yaxis."""
    below = LEGEND
    if legend:
        below = LEGEND | {"title": {"text": legend}}
    x_axis = {"title": {"text": x}, "automargin": True} | more.get("xaxis", {})
    y_axis = {"title": {"text": y}, "automargin": True} | more.get("yaxis", {})
    return {
        "height": height,
        "margin": MARGIN,
        "legend": below,
        "xaxis": x_axis,
        "yaxis": y_axis,
    }


def ticks(values: Line) -> Layout:
    """Return a logarithmic axis with ticks at exactly these values."""
    distinct = sorted(set(map(float, values)))
    return {"type": "log", "tickvals": distinct, "ticktext": [f"{value:g}" for value in distinct]}
