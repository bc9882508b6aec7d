"""Figures as plain JSON: arrays, frames, fractions and dates become lists, numbers and text.

Values that are not finite become null, which plotly does not draw.
"""

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from orderone.report.inputs import Figure

DIGITS = 6  # per number, more than a screen can resolve
# Names of a trace's data, in all kinds of traces.
DATA = (
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
    "close",
    "cells",
    "link",
    "dimensions",
)
# WebGL traces need eval, which pages forbid; these types draw the same without it.
WEBGL = {"scattergl": "scatter", "scatterpolargl": "scatterpolar"}
Json: TypeAlias = Any  # None, bool, int, float, str, or lists and dictionaries of them


def plain_figure(figure: Figure) -> dict[str, Json]:
    """Return a plotly figure as JSON, without its template: pages set a light or a dark one."""
    traces = []
    for trace in figure.get("data") or ():
        trace = plain(trace)
        kind = trace.get("type")
        trace["type"] = WEBGL.get(kind, trace.get("type", "scatter"))
        traces.append(trace)
    layout = plain(figure.get("layout") or {})
    layout.pop("template", None)
    return {"data": traces, "layout": layout}


def kinds(figures: Iterable[Figure]) -> set[str]:
    """Return the kinds of traces of plain figures."""
    types: set[str] = set()
    for figure in figures:
        types.update(trace["type"] for trace in figure["data"])
    return types


def is_empty(figure: Figure) -> bool:
    """Return whether a plain figure shows nothing: points need all of their coordinates."""
    for trace in figure["data"]:
        coordinates = [trace[name] for name in DATA if name in trace]
        if coordinates and all(map(_has_value, coordinates)):
            return False
    return True


def _has_value(values: Json) -> bool:
    if isinstance(values, list):
        return any(map(_has_value, values))
    return values is not None


def plain(value: object) -> Json:
    """Convert a value to JSON, at any depth."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if _is_array(value):
        return _array(np.asarray(value))
    if isinstance(value, Real):
        return number(float(value))
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    if value is pd.NA or value is pd.NaT:
        return None
    return str(value)


def _is_array(value: object) -> bool:
    if isinstance(value, (np.ndarray, np.generic, pd.Series, pd.Index, pd.DataFrame)):
        return True
    return hasattr(value, "__array__")


def _array(array: np.ndarray) -> Json:
    """Convert an array to lists of lists; dates become text."""
    if array.dtype.kind in "mM":
        array = array.astype(str)
    return plain(array.tolist())


def number(value: float) -> float | int | None:
    """Round a number: whole numbers become int, others have six digits."""
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 1e15:
        return int(value)
    return float(f"{value:.{DIGITS}g}")
