"""Networks compared with their limit: a histogram of networks and the density of the limit."""

import numpy as np
from scipy.stats import gaussian_kde

from orderone.report.inputs import ComparisonInput, Figure

POINTS = 300
BINS = 80
NETWORK = "#9ecae1"
LIMIT = "#d55e00"


def density_figure(comparison: ComparisonInput, settings: str) -> Figure:
    """Return a figure for `report.write_figures` of a `measure.Comparison`."""
    low, high = _range(comparison)
    grid = np.linspace(low, high, POINTS)
    if comparison.quantity == "ρ":
        bounds = (-1.0, 1.0)
    else:
        bounds = None
    bars = {
        "type": "histogram",
        "histnorm": "probability density",
        "name": "networks",
        "marker": {"color": NETWORK},
        "x": comparison.network,
        "xbins": {"start": low, "end": high, "size": (high - low) / BINS},
    }
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": "limit (SDE)",
        "x": grid,
        "y": density(comparison.limit, grid, bounds),
        "line": {"color": LIMIT, "width": 2.5},
    }
    distances = "; ".join(map(str, comparison.distances[:2]))
    layout = {
        "title": {"text": f"{comparison.quantity}: {settings}<br><sup>{distances}</sup>"},
        "bargap": 0,
        "xaxis": {"title": {"text": comparison.quantity}},
        "yaxis": {"title": {"text": "density"}},
    }
    return {"data": [bars, line], "layout": layout}


def density(
    samples: np.ndarray, grid: np.ndarray, bounds: tuple[float, float] | None = None
) -> np.ndarray:
    """Return a kernel density estimate on `grid`; mass beyond `bounds` is reflected."""
    if np.ptp(samples) == 0:
        return np.zeros_like(grid)
    if bounds is None:
        return gaussian_kde(samples)(grid)
    estimate = gaussian_kde(samples, bw_method=0.08)
    total = estimate(grid)
    for edge in bounds:
        total = total + estimate(2 * edge - grid)
    return total


def _range(comparison: ComparisonInput) -> tuple[float, float]:
    if comparison.quantity == "ρ":
        return -1.0, 1.0
    both = np.concatenate([comparison.network, comparison.limit])
    low, high = np.quantile(both, [0.0005, 0.9995])
    margin = 0.05 * (high - low) + 1e-12
    return float(low - margin), float(high + margin)
