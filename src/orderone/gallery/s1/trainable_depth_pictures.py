"""Draw the records of `figure7`: a map of accuracies for each panel, and the fitted constant."""

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Grid, Picture, Records
from orderone.gallery.figures import Layout, Trace
from orderone.gallery.s1 import boundary
from orderone.gallery.s1.boundary import Estimate
from orderone.gallery.s1.deep_training import panels_of
from orderone.gallery.s1.trainable_depth_findings import (
    CURVES,
    FACTOR,
    OLD,
    ONE,
    THEORY,
    TWO,
    Scored,
    scored,
)

CAPTIONS = "captions"  # the part of the records with the settings of the panels, in words
SCALE: list[list[object]] = [
    [0.0, "#000000"],
    [0.3, "#5c1010"],
    [0.55, "#b5421a"],
    [0.8, "#f0a020"],
    [1.0, "#fff04a"],
]
LINES = {ONE: ("#ffffff", "solid"), OLD: ("#31d843", "dash"), TWO: ("#ffffff", "dash")}


def draw(records: Records) -> list[Picture | Grid]:
    panels = panels_of(records)
    names = dict(zip(*records[CAPTIONS].to_numpy().T, strict=True))
    lines = records[THEORY]
    pictures: list[Picture | Grid] = []
    for letter, frame in panels.items():
        pictures.append(_picture(f"({letter}) {names.get(letter, '')}", frame, lines))
    return [*pictures, _constants(panels, lines), _table(panels, lines)]


def _picture(title: str, frame: pd.DataFrame, lines: pd.DataFrame) -> Picture:
    """Draw a map of the last accuracies, with curves of theory and the measured boundary."""
    score = scored(frame, lines)
    scales = lines.loc[np.isclose(lines.keep, frame.keep.iloc[0])]
    last = frame[frame.step == frame.step.max()]
    cells = last.pivot_table(index="depth", columns="weight_var", values="accuracy", aggfunc="mean")
    title = f"{title}, {frame.step.max()} steps"
    shallowest = float(frame.depth.min())
    deepest = float(frame.depth.max())
    data = [_heatmap(cells)]
    for name, (colour, dash) in LINES.items():
        data += _line(name, colour, dash, scales, deepest)
    data.append(_dots(score.edges))
    layout = _map_layout(shallowest, deepest)
    alt = (
        f"Training accuracy from {cells.min().min():.2f} (black) to {cells.max().max():.2f}"
        f" (yellow). The boundary is at {score.factor} times the smaller depth scale; the paper"
        " says 12."
    )
    return Picture(title, {"data": data, "layout": layout}, alt)


def _heatmap(cells: pd.DataFrame) -> Trace:
    return {
        "type": "heatmap",
        "x": cells.columns.tolist(),
        "y": cells.index.tolist(),
        "z": cells.to_numpy().tolist(),
        "colorscale": SCALE,
        "zmin": 0,
        "zmax": 1,
        "colorbar": {"title": {"text": "accuracy"}, "thickness": 12},
        "hovertemplate": "σ_w² = %{x}<br>L = %{y}<br>accuracy %{z:.2f}<extra></extra>",
    }


def _map_layout(shallowest: float, deepest: float) -> Layout:
    legend = {
        "orientation": "h",
        "y": -0.25,
        "bgcolor": "#555555",  # two lines are white
        "font": {"color": "#ffffff"},
    }
    return {
        "height": 420,
        "xaxis": {"title": {"text": "σ_w²"}, "range": [1, 4]},
        "yaxis": {"title": {"text": "depth L"}, "range": [shallowest, deepest]},
        "margin": {"t": 30},
        "legend": legend,
    }


def _line(name: str, colour: str, dash: str, scales: pd.DataFrame, deepest: float) -> list[Trace]:
    """Draw a curve with a dark edge, which is visible on yellow; clip parts far above the map."""
    depth = Scored(scales).curve(name)
    points = {
        "x": scales.weight_var.tolist(),
        "y": np.where(depth < 4 * deepest, depth, 4 * deepest).tolist(),
    }
    both = {"type": "scatter", "mode": "lines", **points, "hoverinfo": "skip"}
    seam = both | {"line": {"color": "#303030", "width": 4, "dash": dash}, "showlegend": False}
    return [seam, both | {"name": name, "line": {"color": colour, "width": 2, "dash": dash}}]


def _dots(edges: pd.DataFrame) -> Trace:
    inside = edges[edges.low == edges.high]
    marker = {
        "symbol": "circle",
        "size": 7,
        "color": "#38b6ff",
        "line": {"color": "#303030", "width": 1},
    }
    points = {"x": inside.weight_var.tolist(), "y": inside.low.round(1).tolist()}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "measured boundary",
        "marker": marker,
        **points,
    }


def _constants(panels: dict[str, pd.DataFrame], lines: pd.DataFrame) -> Picture:
    """Draw the fitted constant, which the paper says is 12, against training steps."""
    data = []
    words = []
    for letter, frame in panels.items():
        steps: list[int] = []
        constants: list[Estimate] = []
        above: list[float] = []
        below: list[float] = []
        for step in sorted(frame.step.unique()):
            k = scored(frame, lines, int(step)).factor
            steps.append(int(step))
            constants.append(k)
            above.append(k.high - k.value)
            below.append(k.value - k.low)
        bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
        points = {"x": steps, "y": [k.value for k in constants], "error_y": bars}
        data.append({"type": "scatter", "mode": "lines+markers", "name": f"({letter})", **points})
        words.append(f"({letter}) {_short(constants[0])} to {_short(constants[-1])}")
    layout = {
        "height": 380,
        "margin": {"t": 30},
        "xaxis": {"type": "log", "title": {"text": "training steps"}},
        "yaxis": {"type": "log", "title": {"text": "k of L = k min(ξ₁, ξ₂)"}},
        "shapes": [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": FACTOR,
                "y1": FACTOR,
                "line": {"dash": "dot", "width": 1.5, "color": "#8a8a8a"},
            }
        ],
        "legend": {"orientation": "h", "y": -0.25},
    }
    alt = f"The constant of each panel against training steps, and 12 (dotted): {', '.join(words)}."
    return Picture("The constant against training steps", {"data": data, "layout": layout}, alt)


def _short(k: Estimate) -> str:
    if np.isfinite(k.value):
        return f"{k.value:.1f}"
    return "unknown"


def _table(panels: dict[str, pd.DataFrame], lines: pd.DataFrame) -> Grid:
    rows = []
    for letter, frame in panels.items():
        whole = scored(frame, lines)
        for side, score in (
            ("left", whole.side("left")),
            ("right", whole.side("right")),
            ("both", whole),
        ):
            misfits = [str(score.misfit(curve)) for curve in CURVES]
            rows.append(
                (
                    letter,
                    side,
                    f"{boundary.known(score.edges)} of {len(score.edges)}",
                    *misfits,
                    str(score.factor),
                )
            )
    head = ("panel", "side", "columns with a boundary", *CURVES, "constant instead of 12")
    return Grid("Mean |log(curve / boundary)|, with 95 % intervals", head, rows)
