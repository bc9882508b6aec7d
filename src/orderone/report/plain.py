"""Figures as JSON knows them: arrays, frames, fractions and dates become lists, numbers and text;
what is not finite becomes null, which plotly leaves out of a picture."""

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

DIGITS = 6  # of every number: more than a screen can show
# What a trace shows, in all kinds of traces.
DATA = (
    *(
        "x",
        "y",
        "z",
        "values",
        "labels",
        "r",
        "theta",
        "a",
        "b",
        "c",
        "lat",
        "lon",
        "locations",
        "open",
        "high",
        "low",
    ),
    *("close", "cells", "link", "dimensions"),
)
WEBGL = {
    "scattergl": "scatter",
    "scatterpolargl": "scatterpolar",
}  # their shaders are compiled by eval, which pages forbid


def plain_figure(figure: Mapping[str, Any]) -> dict[str, Any]:
    """A plotly figure as JSON. Templates are left out: the page has its own, a light and a dark
    one."""
    traces = [plain(trace) for trace in figure.get("data") or ()]
    layout = {
        name: value
        for name, value in plain(figure.get("layout") or {}).items()
        if name != "template"
    }
    return {
        "data": [
            trace | {"type": WEBGL.get(trace.get("type"), trace.get("type", "scatter"))}
            for trace in traces
        ],
        "layout": layout,
    }


def is_empty(figure: Mapping[str, Any]) -> bool:
    """Whether a plain figure has nothing to show: points need all of their coordinates."""
    return not any(
        _is_seen([trace[name] for name in DATA if name in trace]) for trace in figure["data"]
    )


def _is_seen(coordinates: list[Any]) -> bool:
    return bool(coordinates) and all(map(_has_value, coordinates))


def _has_value(values: Any) -> bool:
    if isinstance(values, list):
        return any(map(_has_value, values))
    return values is not None


def plain(value: Any) -> Any:
    """The same in the words of JSON, at any depth."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (np.ndarray, np.generic, pd.Series, pd.Index, pd.DataFrame)) or hasattr(
        value, "__array__"
    ):
        return _array(np.asarray(value))
    if isinstance(value, Real):
        return number(float(value))
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    return _text(value)


def _array(array: np.ndarray) -> Any:
    """Lists of lists; dates as text."""
    return plain((array.astype(str) if array.dtype.kind in "mM" else array).tolist())


def _text(value: Any) -> str | None:
    if value is pd.NA or value is pd.NaT:
        return None
    return str(value)


def number(value: float) -> float | int | None:
    """Short: whole numbers without a point, others with six digits."""
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")
