"""Style of the figures of S1 ("Mean field theory for deep dropout networks"): keep rates by colour,
theory as solid lines, networks as dashes and dots."""

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from orderone.gallery.figures import Layout, Trace
from orderone.gallery.frames import Frame, Line

# Visible on white and on black; red, green and blue for 1, .7 and .4 are as in the paper.
KEEP = {
    1.0: "#d64550",
    0.9: "#d98a29",
    0.8: "#9a6fc4",
    0.7: "#3a9d5d",
    0.6: "#2aa5a5",
    0.4: "#4a86d8",
}
SERIES = ("#d64550", "#d98a29", "#3a9d5d", "#4a86d8", "#9a6fc4", "#2aa5a5")
NEUTRAL = "#888888"  # unity lines, guides
Values: TypeAlias = Iterable[object]


def line(
    x: Values, y: Values, name: str, colour: str, dash: str = "solid", **more: object
) -> Trace:
    """Return a curve."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": _list(x),
        "y": _list(y),
        "name": name,
        "line": {"color": colour, "dash": dash, "width": 2},
        **more,
    }


def dots(
    x: Values,
    y: Values,
    name: str,
    colour: str,
    se: Values | None = None,
    marker: Trace | None = None,
    **more: object,
) -> Trace:
    """Return points, with error bars if there are standard errors `se`."""
    points: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": _list(x),
        "y": _list(y),
        "name": name,
        "marker": {"color": colour, "size": 7} | (marker or {}),
    }
    if se is not None:
        points["error_y"] = {"type": "data", "array": _list(se), "thickness": 1.2, "width": 3}
    return points | more


def between(value: Line, low: Line, high: Line) -> Trace:
    """Return error bars for an interval that need not be symmetric."""
    return {
        "type": "data",
        "symmetric": False,
        "array": _list(high - value),
        "arrayminus": _list(value - low),
    }


def shade(x: Values, low: Values, high: Values, name: str, colour: str, **more: object) -> Trace:
    """Return a band between two curves."""
    red, green, blue = bytes.fromhex(colour[1:])
    return {
        "type": "scatter",
        "mode": "lines",
        "hoverinfo": "skip",
        "showlegend": False,
        "x": [*_list(x), *_list(x)[::-1]],
        "y": [*_list(high), *_list(low)[::-1]],
        "name": name,
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.22)",
        "line": {"width": 0},
        **more,
    }


def layout(x: str | Layout, y: str | Layout, height: int = 460) -> Layout:
    """Return axes with titles and a legend below, where it covers nothing on small screens."""
    return {
        "height": height,
        "legend": {"orientation": "h", "y": -0.22, "yanchor": "top"},
        "xaxis": {"title": {"text": x}} if isinstance(x, str) else x,
        "yaxis": {"title": {"text": y}} if isinstance(y, str) else y,
    }


def log(title: str, **more: object) -> Layout:
    """Return a logarithmic axis."""
    return {"title": {"text": title}, "type": "log", "exponentformat": "power", **more}


def thinned(frame: Frame, every: int) -> Frame:
    """Return every `every`-th line, and the last."""
    return frame[(frame.index % every == 0) | (frame.index == frame.index[-1])]


def _list(values: Values) -> list[object]:
    if isinstance(values, np.ndarray):
        return values.tolist()
    return list(values)
