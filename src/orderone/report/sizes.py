"""Page with the sizes of a training relative to their start, and the corridors around them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orderone.core.errors import InputError
from orderone.report.figures import write_figures
from orderone.report.inputs import Figure, FilePath

if TYPE_CHECKING:
    from orderone.measure.size_monitor import Size

GREY = "#888888"


def write_sizes(
    path: FilePath, sizes: "Sequence[Size]", title: str = "Sizes relative to the start"
) -> Path:
    """Draw sizes of a `SizeMonitor`, or of `o1.train(sizes_every=...)`, as an HTML page.

    There is one line for each module, and one figure for each corridor: a readout may have a wider
    one. The page lists sizes that left their corridor.
    """
    if not sizes:
        raise InputError(
            "sizes: none were recorded; pass `monitor.sizes` after a `read`, or the `sizes` of a"
            " training with sizes_every=...",
            argument="sizes",
        )
    corridors: dict[tuple[float, float], list[Size]] = {}
    for size in sizes:
        corridors.setdefault((size.low, size.high), []).append(size)
    figures = [_figure(inside, *corridor) for corridor, inside in corridors.items()]
    reasons = [size.reason for size in sizes if size.reason is not None]
    notes = reasons or ["All sizes stayed inside their corridors."]
    return write_figures(path, title, figures, notes)


def _figure(sizes: "Sequence[Size]", low: float, high: float) -> Figure:
    lines: dict[str, tuple[list[int], list[float]]] = {}
    for size in sizes:
        steps, values = lines.setdefault(size.name, ([], []))
        steps.append(size.step)
        values.append(size.relative)
    traces: list[dict[str, object]] = []
    for name, (steps, values) in lines.items():
        traces.append({"type": "scatter", "mode": "lines", "name": name, "x": steps, "y": values})
    ends = [min(size.step for size in sizes), max(size.step for size in sizes)]
    for bound in (low, high):
        dashed = {"color": GREY, "dash": "dash"}
        traces.append(
            {"type": "scatter", "mode": "lines", "x": ends, "y": [bound, bound], "line": dashed,
             "showlegend": False, "hoverinfo": "skip"}
        )  # fmt: skip
    layout = {
        "title": {"text": f"Corridor {low:.3g} to {high:.3g}"},
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "RMS, relative to the start"}, "type": "log"},
    }
    return {"data": traces, "layout": layout}
