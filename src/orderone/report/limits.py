"""Networks beside their limit: a histogram of the ones, the density of the other."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde

POINTS = 300
BINS = 80
NETWORK = "#9ecae1"
LIMIT = "#d55e00"


def density_figure(comparison: Any, settings: str) -> Mapping[str, Any]:
    """For `report.write_figures`; takes a `measure.Comparison`."""
    low, high = _range(comparison)
    grid = np.linspace(low, high, POINTS)
    bounds = (-1.0, 1.0) if comparison.quantity == "ρ" else None
    bars = {
        "type": "histogram",
        "histnorm": "probability density",
        "name": "networks",
        "marker": {"color": NETWORK},
    }
    bars |= {
        "x": comparison.network,
        "xbins": {"start": low, "end": high, "size": (high - low) / BINS},
    }
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": "SDE",
        "x": grid,
        "y": density(comparison.limit, grid, bounds),
    }
    line |= {"line": {"color": LIMIT, "width": 2.5}}
    told = "; ".join(map(str, comparison.distances[:2]))
    title = {"text": f"{comparison.quantity}: {settings}<br><sup>{told}</sup>"}
    axes = {
        "xaxis": {"title": {"text": comparison.quantity}},
        "yaxis": {"title": {"text": "density"}},
    }
    return {"data": [bars, line], "layout": {"title": title, "bargap": 0, **axes}}


def density(
    samples: np.ndarray, grid: np.ndarray, bounds: tuple[float, float] | None = None
) -> np.ndarray:
    """A kernel estimate on `grid`. What it would put beyond `bounds` is reflected back."""
    if np.ptp(samples) == 0:
        return np.zeros_like(grid)
    estimate = gaussian_kde(samples, bw_method=None if bounds is None else 0.08)
    if bounds is None:
        images = []
    else:
        images = [estimate(2 * edge - grid) for edge in bounds]
    return sum(images, estimate(grid))


def _range(comparison: Any) -> tuple[float, float]:
    if comparison.quantity == "ρ":
        return -1.0, 1.0
    both = np.concatenate([comparison.network, comparison.limit])
    low, high = np.quantile(both, [0.0005, 0.9995])
    margin = 0.05 * (high - low) + 1e-12
    return float(low - margin), float(high + margin)
