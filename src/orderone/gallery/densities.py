"""Samples of a network beside samples of its limit: densities to draw, and distances to judge by."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import gaussian_kde

from orderone.gallery.experiment import Finding
from orderone.gallery.layouts import GREY
from orderone.measure.fit import Fit, fit_noisy_exponent
from orderone.theory.limits import Distance, distance

NETWORK = "network"
CLOSE = 0.1  # Kolmogorov-Smirnov: what the eye takes for one curve
POINTS, BINS = 121, 48
CONFIDENCE = 0.99


def densities(samples: Mapping[str, np.ndarray], low: float, high: float) -> pd.DataFrame:
    """Of networks a histogram, of everything else a kernel density estimate, as the paper draws them."""
    rows = []
    for curve, values in samples.items():
        values = values[np.isfinite(values)]
        if curve == NETWORK:
            heights, edges = np.histogram(values, BINS, (low, high))
            density, x = heights / (values.size * np.diff(edges)), (edges[1:] + edges[:-1]) / 2
        else:
            x = np.linspace(low, high, POINTS)
            density = gaussian_kde(values)(x)
        rows += [(curve, *pair) for pair in zip(x, density, strict=True)]
    return pd.DataFrame(rows, columns=["curve", "x", "density"])


def distances(samples: Mapping[str, np.ndarray], kind: str = "ks") -> pd.DataFrame:
    """Of every curve from that of the network, with an interval."""
    network = samples[NETWORK][np.isfinite(samples[NETWORK])]
    rows = [(NETWORK, 0.0, 0.0, 0.0, network.mean(), network.std())]
    for curve, values in samples.items():
        if curve != NETWORK:
            apart: Distance = distance(network, values, kind, confidence=CONFIDENCE)
            rows.append((curve, apart.value, apart.low, apart.high, values.mean(), values.std()))
    return pd.DataFrame(rows, columns=["curve", "distance", "low", "high", "mean", "std"])


def close(claim: str, line: Any, of: str = "paper", erratum: str = "") -> Finding:
    """By the interval of the distance; unclear where it holds the border."""
    held = True if line.high < CLOSE else False if line.low > CLOSE else None
    return Finding(claim, held, f"KS {line.distance:.3f} [{line.low:.3f}, {line.high:.3f}]", of, erratum)


def power(frame: pd.DataFrame) -> Fit:
    """Of distances over widths; the noise of each from its 99 % interval."""
    return fit_noisy_exponent(frame.width, frame.distance, (frame.high - frame.distance) / 2.6, confidence=CONFIDENCE)


def bars(frame: pd.DataFrame, row: int = 0) -> dict:
    """The histogram of the networks."""
    some = frame[frame.curve == NETWORK]
    step = float(np.diff(some.x)[0])
    return {
        "type": "bar", "x": some.x.tolist(), "y": some.density.tolist(), "width": step, "name": NETWORK,
        "marker": {"color": GREY, "line": {"width": 0}}, "opacity": 0.55, "showlegend": row == 0, "xaxis": f"x{row + 1}", "yaxis": f"y{row + 1}",
    }  # fmt: skip


def curves(frame: pd.DataFrame, styles: Mapping[str, Mapping[str, Any]], names: Mapping[str, str], row: int = 0) -> list[dict]:
    lines = []
    for curve, style in styles.items():
        some = frame[frame.curve == curve]
        if len(some):
            lines.append({
                "type": "scatter", "mode": "lines", "x": some.x.tolist(), "y": some.density.tolist(), "line": dict(style),
                "name": names[curve], "legendgroup": curve, "showlegend": row == 0, "xaxis": f"x{row + 1}", "yaxis": f"y{row + 1}",
            })  # fmt: skip
    return lines


def falling(frame: pd.DataFrame, styles: Mapping[str, Mapping[str, Any]], names: Mapping[str, str], title: str) -> dict:
    """Distances over widths, with intervals."""
    data = []
    for curve, style in styles.items():
        some = frame[frame.curve == curve]
        error = {"type": "data", "symmetric": False, "array": (some.high - some.distance).tolist()}
        error |= {"arrayminus": (some.distance - some.low).tolist(), "thickness": 1}
        data.append({
            "type": "scatter", "mode": "lines+markers", "x": some.width.tolist(), "y": some.distance.tolist(), "error_y": error,
            "line": {**style, "width": 1.5}, "name": names[curve],
        })  # fmt: skip
    ticks: Sequence[int] = sorted(int(n) for n in frame.width.unique())
    layout = {
        "height": 380, "xaxis": {"type": "log", "title": {"text": "width n = depth d"}, "tickvals": ticks},
        "yaxis": {"type": "log", "title": {"text": title}, "dtick": "D2"}, "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    }  # fmt: skip
    return {"data": data, "layout": layout}
