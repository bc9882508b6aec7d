"""plotly.js, which draws the figures of pages.

The package has a small plotly.js, compressed: `tools/plotly` builds it from the traces in `TRACES`.
A figure with other traces needs the full one, which is in the Python package plotly.
"""

import base64
import gzip
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from orderone.core.optional import need

SMALL = Path(__file__).parent / "page" / "plotly.min.js.gz"
TRACES = frozenset({"bar", "contour", "heatmap", "histogram", "scatter"})
PURPOSE = "to draw traces other than " + ", ".join(sorted(TRACES))


@dataclass(frozen=True)
class PlotlyJs:
    """The script, and its compressed form for a page, in base64."""

    script: str
    packed: str


def plotly_js(traces: Collection[str] = ()) -> PlotlyJs:
    """Return the small plotly.js, or the full one if it is needed for these kinds of traces."""
    if TRACES.issuperset(traces):
        return _small()
    return _full()


@lru_cache
def _small() -> PlotlyJs:
    compressed = SMALL.read_bytes()
    return PlotlyJs(gzip.decompress(compressed).decode(), base64.b64encode(compressed).decode())


@lru_cache
def _full() -> PlotlyJs:
    script: str = need("plotly.offline", "report", PURPOSE).get_plotlyjs()
    compressed = gzip.compress(script.encode(), mtime=0)
    return PlotlyJs(script, base64.b64encode(compressed).decode())
