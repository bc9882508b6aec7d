"""A phase diagram as a page: phases, the critical line, contours of the trainable depth; then the
correlation c*."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from orderone.report.figures import write_figures
from orderone.theory.meanfield import PhaseDiagram, critical_weight_var

COLOURS = {"ordered": "#cfe3f1", "critical": "#ffffff", "chaotic": "#f8ddcb", "diverges": "#d0d0d0"}
DEPTHS = (10, 20, 30, 50, 100, 200, 500, 1000)
DEEPEST = 1e4  # deeper is drawn as that: near the line the depth has no bound


def write_phases(diagram: PhaseDiagram, path: str | PathLike[str]) -> Path:
    """Writes the page, and says where."""
    network = diagram.networks
    title = f"Phases of {network.phi.name} networks, keep rate {network.keep:g}"
    notes = (
        (
            "Blue: ordered, gradients vanish. Orange: chaotic, gradients explode. Grey: the length"
            " of a signal diverges. Red: the critical line, chi_1 = 1."
        ),
        "Contours: the depth up to which such networks can be trained, min(12 xi_1, 12 xi_2).",
    )
    return write_figures(path, title, [_phases(diagram), _correlation(diagram)], notes)


def _phases(diagram: PhaseDiagram) -> dict[str, Any]:
    words = np.where(diagram.status == "diverges", "diverges", diagram.phase)
    codes = np.select([words == word for word in COLOURS], range(len(COLOURS)))
    steps = [
        [k / len(COLOURS), colour] for k, colour in enumerate(COLOURS.values()) for k in (k, k + 1)
    ]
    depth = np.minimum(diagram.trainable_depth, DEEPEST)
    field = {
        "type": "heatmap",
        "z": codes.T,
        "colorscale": steps,
        "zmin": -0.5,
        "zmax": len(COLOURS) - 0.5,
    }
    hover = (
        "weight_var %{x:.4g}<br>bias_var %{y:.4g}<br>%{text}<br>trainable depth"
        " %{customdata:.4g}<extra></extra>"
    )
    field |= {
        "text": words.T,
        "customdata": depth.T,
        "hovertemplate": hover,
        "showscale": False,
        **_axes(diagram),
    }
    return {
        "data": [field, *_contours(diagram, depth), *_critical(diagram)],
        "layout": _layout("Phases and trainable depth"),
    }


def _contours(diagram: PhaseDiagram, depth: np.ndarray) -> list[dict[str, Any]]:
    """One trace a depth, so that each has its own place in the legend; 1/depth is what varies
    smoothly across the line."""
    if min(depth.shape) < 2:
        return []
    common = {
        "type": "contour",
        "z": 1 / np.maximum(depth, 1e-3).T,
        "showscale": False,
        "hoverinfo": "skip",
    }
    return [
        common
        | _axes(diagram)
        | {
            "contours": {
                "coloring": "lines",
                "start": 1 / d,
                "end": 1 / d,
                "size": 1,
                "showlabels": False,
            },
            "line": {"width": 1.2},
            "colorscale": [[0, shade], [1, shade]],
            "name": f"depth {d}",
            "showlegend": True,
        }
        for d, shade in zip(DEPTHS, _shades(len(DEPTHS)), strict=True)
        if depth.min() < d < depth.max()
    ]


def _critical(diagram: PhaseDiagram) -> list[dict[str, Any]]:
    network = diagram.networks
    bias_var = np.linspace(diagram.bias_var.min(), diagram.bias_var.max(), 200)
    weight_var = np.asarray(critical_weight_var(network.activation, bias_var, network.keep))
    seen = (weight_var >= diagram.weight_var.min()) & (weight_var <= diagram.weight_var.max())
    if not seen.any():
        return []
    line = {
        "x": weight_var[seen],
        "y": bias_var[seen],
        "line": {"color": "#c2185b", "width": 3},
        "name": "chi_1 = 1",
    }
    return [{"type": "scatter", "mode": "lines", "showlegend": True, **line}]


def _correlation(diagram: PhaseDiagram) -> dict[str, Any]:
    hover = "weight_var %{x:.4g}<br>bias_var %{y:.4g}<br>c* %{z:.6g}<extra></extra>"
    field = {
        "type": "heatmap",
        "z": diagram["c_star"].T,
        "colorscale": "Viridis",
        "hovertemplate": hover,
    }
    field |= {"colorbar": {"title": {"text": "c*"}}, **_axes(diagram)}
    layout = _layout("Correlation that two inputs come to") | {"showlegend": False}
    return {"data": [field, *_critical(diagram)], "layout": layout}


def _axes(diagram: PhaseDiagram) -> dict[str, np.ndarray]:
    return {"x": diagram.weight_var, "y": diagram.bias_var}


def _layout(title: str) -> dict[str, Any]:
    axes = {
        f"{axis}axis": {"title": {"text": name}}
        for axis, name in (("x", "weight_var"), ("y", "bias_var"))
    }
    return {"title": {"text": title}, "legend": {"orientation": "v"}, "height": 520, **axes}


def _shades(count: int) -> list[str]:
    """From light to dark green: the deeper, the darker."""
    return [f"hsl(150, 70%, {70 - 50 * k / (count - 1):.0f}%)" for k in range(count)]
