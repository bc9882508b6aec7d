"""Samples of a network beside samples of its limit: densities to draw, and distances to judge
by."""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pandas as pd
from scipy.stats import gaussian_kde

from orderone.gallery.experiment import Finding
from orderone.gallery.figures import GREY, Figure, Trace, panels, scatter, spans
from orderone.gallery.frames import Line
from orderone.gallery.judge import below, finding, only
from orderone.measure import Fit
from orderone.measure.fit import fit_noisy_exponent
from orderone.theory.limits import distance

NETWORK = "network"
CLOSE = 0.1  # Kolmogorov-Smirnov: what the eye takes for one curve
POINTS = 121
BINS = 48
CONFIDENCE = 0.99
DEVIATIONS = 2.6  # of the intervals, and how many standard deviations they reach

Styles: TypeAlias = Mapping[str, Trace]


def densities(
    samples: Mapping[str, np.ndarray], low: float, high: float, smooth: bool = True
) -> pd.DataFrame:
    """Of networks a histogram, of all else a kernel density estimate; a histogram too if numbers
    crowd at the ends."""
    rows = []
    for curve, values in samples.items():
        values = values[np.isfinite(values)]
        if smooth and curve != NETWORK:
            x = np.linspace(low, high, POINTS)
            density = gaussian_kde(values)(x)
        else:
            heights, edges = np.histogram(values, BINS, (low, high))
            density = heights / (values.size * np.diff(edges))
            x = (edges[1:] + edges[:-1]) / 2
        rows += [(curve, *pair) for pair in zip(x, density, strict=True)]
    return pd.DataFrame(rows, columns=["curve", "x", "density"])


def distances(samples: Mapping[str, np.ndarray], kind: str = "ks") -> pd.DataFrame:
    """Of every curve from that of the network, with an interval."""
    network = samples[NETWORK][np.isfinite(samples[NETWORK])]
    rows = [(NETWORK, 0.0, 0.0, 0.0, network.mean(), network.std())]
    for curve, values in samples.items():
        if curve != NETWORK:
            apart = distance(network, values, kind, confidence=CONFIDENCE)
            rows.append((curve, apart.value, apart.low, apart.high, values.mean(), values.std()))
    return pd.DataFrame(rows, columns=["curve", "distance", "low", "high", "mean", "std"])


def close(claim: str, line: Line, erratum: str = "") -> Finding:
    """By the interval of the distance; unclear where it holds the border."""
    held = below(line.distance, CLOSE, line.high - line.distance)
    return finding(
        claim, held, f"KS {line.distance:.3f} [{line.low:.3f}, {line.high:.3f}]", erratum
    )


def power(frame: pd.DataFrame) -> Fit:
    """Of distances over widths."""
    noise = (frame.high - frame.distance) / DEVIATIONS
    return fit_noisy_exponent(frame.width, frame.distance, noise, confidence=CONFIDENCE)


def drawn(
    frame: pd.DataFrame, styles: Styles, names: Mapping[str, str], row: int = 0
) -> list[Trace]:
    """Bars for the networks, lines for the others."""
    some = only(frame, curve=NETWORK)
    bars = scatter(
        some.x,
        some.density,
        "" if row else NETWORK,
        row=row,
        type="bar",
        width=float(np.diff(some.x)[0]),
    )
    del bars["mode"]
    traces = [bars | {"marker": {"color": GREY, "line": {"width": 0}}, "opacity": 0.55}]
    for curve, style in styles.items():
        some = only(frame, curve=curve)
        if len(some):
            traces.append(
                scatter(
                    some.x, some.density, "" if row else names[curve], row=row, line=dict(style)
                )
            )
    return traces


def falling(frame: pd.DataFrame, styles: Styles, names: Mapping[str, str], title: str) -> Figure:
    """Distances over widths, with intervals."""
    data = []
    for curve, style in styles.items():
        some = only(frame, curve=curve)
        bars = spans(some.distance, some.low, some.high)
        line = {**style, "width": 1.5}
        data.append(
            scatter(
                some.width,
                some.distance,
                names[curve],
                mode="lines+markers",
                error_y=bars,
                line=line,
            )
        )
    layout = panels([title], "width n = depth d", height=280, log="xy")
    layout["xaxis1"]["tickvals"] = sorted(set(frame.width.to_list()))
    layout["yaxis1"]["dtick"] = "D2"
    return {"data": data, "layout": layout}
