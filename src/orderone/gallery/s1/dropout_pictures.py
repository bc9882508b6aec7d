"""How figures of S1 are drawn here: keep rates by colour, theory as solid lines, networks as dashes
and dots."""

from collections.abc import Sequence
from typing import Any

from orderone.gallery.frames import Frame, Line

# Mid-tones, which show on white and on black; red, green and blue for 1, .7 and .4 are the paper's.
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


def line(
    x: Any, y: Any, name: str, colour: str, dash: str = "solid", **more: Any
) -> dict[str, Any]:
    style = {"color": colour, "dash": dash, "width": 2}
    return {
        "type": "scatter",
        "mode": "lines",
        "x": _list(x),
        "y": _list(y),
        "name": name,
        "line": style,
    } | more


def dots(x: Any, y: Any, name: str, colour: str, se: Any = None, **more: Any) -> dict[str, Any]:
    if se is None:
        bars = {}
    else:
        bars = {"error_y": {"type": "data", "array": _list(se), "thickness": 1.2, "width": 3}}
    marker = {"color": colour, "size": 7} | more.pop("marker", {})
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": _list(x),
        "y": _list(y),
        "name": name,
        "marker": marker,
    }
    return points | bars | more


def between(value: Line, low: Line, high: Line) -> dict[str, Any]:
    """Error bars for an interval that need not be symmetric."""
    return {
        "type": "data",
        "symmetric": False,
        "array": _list(high - value),
        "arrayminus": _list(value - low),
    }


def shade(x: Any, low: Any, high: Any, name: str, colour: str, **more: Any) -> dict[str, Any]:
    """A band between two curves."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    around = {
        "x": [*_list(x), *_list(x)[::-1]],
        "y": [*_list(high), *_list(low)[::-1]],
        "name": name,
    }
    fill = {"fill": "toself", "fillcolor": f"rgba({red},{green},{blue},0.22)", "line": {"width": 0}}
    return (
        {"type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False}
        | around
        | fill
        | more
    )


def layout(x: str | dict[str, Any], y: str | dict[str, Any], height: int = 460) -> dict[str, Any]:
    """Axes with titles; the legend lies below, where it covers nothing on a narrow screen."""
    axes = {f"{axis}axis": _axis(given) for axis, given in (("x", x), ("y", y))}
    return {"height": height, "legend": {"orientation": "h", "y": -0.22, "yanchor": "top"}, **axes}


def log(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, "type": "log", "exponentformat": "power", **more}


def thinned(frame: Frame, every: int) -> Frame:
    """Every so-many-th line, and the last."""
    return frame[(frame.index % every == 0) | (frame.index == frame.index[-1])]


def _axis(given: str | dict[str, Any]) -> dict[str, Any]:
    if isinstance(given, str):
        return {"title": {"text": given}}
    return given


def _list(values: Any) -> list[Any]:
    if hasattr(values, "tolist"):
        return values.tolist()
    if isinstance(values, Sequence):
        return list(values)
    return [*values]
