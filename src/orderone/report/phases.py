"""A phase diagram as a page: phases, the critical line, contours of the trainable depth, and the
correlation c*."""

from pathlib import Path

import numpy as np

from orderone.report.figures import write_figures
from orderone.report.inputs import Figure, FilePath, Layout, Trace
from orderone.theory.meanfield import PhaseDiagram, critical_weight_var

COLOURS = {"ordered": "#cfe3f1", "critical": "#ffffff", "chaotic": "#f8ddcb", "diverges": "#d0d0d0"}
DEPTHS = (10, 20, 30, 50, 100, 200, 500, 1000)
DEEPEST = 1e4  # larger depths are drawn as this one: near the line the depth has no bound


def write_phases(diagram: PhaseDiagram, path: FilePath) -> Path:
    """Write the page of a phase diagram; return its path."""
    network = diagram.networks
    title = f"Phases of {network.phi.name} networks, keep rate {network.keep:g}"
    notes = (
        (
            "Blue: ordered, gradients vanish. Orange: chaotic, gradients explode. Grey: signals"
            " grow without bound. Red: the critical line, where gradients keep their size"
            " (chi_1 = 1)."
        ),
        (
            "Contours: the largest depth that can be trained, by a rule of thumb: 12 times the"
            " smaller of two depths. In xi_1 layers, squared gradients grow or shrink by a factor"
            " of e. In xi_2 layers, the correlation of two inputs comes closer to its limit by the"
            " same factor."
        ),
    )
    return write_figures(path, title, [_phases(diagram), _correlation(diagram)], notes)


def _phases(diagram: PhaseDiagram) -> Figure:
    words = np.where(diagram.status == "diverges", "diverges", diagram.phase)
    codes = np.select([words == word for word in COLOURS], range(len(COLOURS)))
    steps = []  # a colour scale with jumps: one flat piece for each phase
    for k, colour in enumerate(COLOURS.values()):
        steps.append([k / len(COLOURS), colour])
        steps.append([(k + 1) / len(COLOURS), colour])
    depth = np.minimum(diagram.trainable_depth, DEEPEST)
    hover = (
        "weight_var %{x:.4g}<br>bias_var %{y:.4g}<br>%{text}<br>trainable depth"
        " %{customdata:.4g}<extra></extra>"
    )
    field = {
        "type": "heatmap",
        "z": codes.T,
        "colorscale": steps,
        "zmin": -0.5,
        "zmax": len(COLOURS) - 0.5,
        "text": words.T,
        "customdata": depth.T,
        "hovertemplate": hover,
        "showscale": False,
        "x": diagram.weight_var,
        "y": diagram.bias_var,
    }
    return {
        "data": [field, *_contours(diagram, depth), *_critical(diagram)],
        "layout": _layout("Phases and trainable depth"),
    }


def _contours(diagram: PhaseDiagram, depth: np.ndarray) -> list[Trace]:
    """Return one trace per depth, so that each has an entry in the legend.

    These are contours of 1/depth, which is smooth across the critical line.
    """
    if min(depth.shape) < 2:
        return []
    inverse = 1 / np.maximum(depth, 1e-3).T
    traces = []
    for k, level in enumerate(DEPTHS):
        if not depth.min() < level < depth.max():
            continue
        # deeper networks have a darker green
        shade = f"hsl(150, 70%, {70 - 50 * k / (len(DEPTHS) - 1):.0f}%)"
        contours = {
            "coloring": "lines",
            "start": 1 / level,
            "end": 1 / level,
            "size": 1,
            "showlabels": False,
        }
        trace = {
            "type": "contour",
            "z": inverse,
            "showscale": False,
            "hoverinfo": "skip",
            "x": diagram.weight_var,
            "y": diagram.bias_var,
            "contours": contours,
            "line": {"width": 1.2},
            "colorscale": [[0, shade], [1, shade]],
            "name": f"depth {level}",
            "showlegend": True,
        }
        traces.append(trace)
    return traces


def _critical(diagram: PhaseDiagram) -> list[Trace]:
    network = diagram.networks
    bias_var = np.linspace(diagram.bias_var.min(), diagram.bias_var.max(), 200)
    weight_var = np.asarray(critical_weight_var(network.activation, bias_var, network.keep))
    inside = (weight_var >= diagram.weight_var.min()) & (weight_var <= diagram.weight_var.max())
    if not inside.any():
        return []
    line = {
        "type": "scatter",
        "mode": "lines",
        "showlegend": True,
        "x": weight_var[inside],
        "y": bias_var[inside],
        "line": {"color": "#c2185b", "width": 3},
        "name": "chi_1 = 1",
    }
    return [line]


def _correlation(diagram: PhaseDiagram) -> Figure:
    field = {
        "type": "heatmap",
        "z": diagram["c_star"].T,
        "colorscale": "Viridis",
        "hovertemplate": "weight_var %{x:.4g}<br>bias_var %{y:.4g}<br>c* %{z:.6g}<extra></extra>",
        "colorbar": {"title": {"text": "c*"}},
        "x": diagram.weight_var,
        "y": diagram.bias_var,
    }
    layout = _layout("Correlation c* of two inputs in deep layers") | {"showlegend": False}
    return {"data": [field, *_critical(diagram)], "layout": layout}


def _layout(title: str) -> Layout:
    return {
        "title": {"text": title},
        "legend": {"orientation": "v"},
        "height": 520,
        "xaxis": {"title": {"text": "weight_var"}},
        "yaxis": {"title": {"text": "bias_var"}},
    }
