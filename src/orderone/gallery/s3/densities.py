"""Samples of a network and of its limit: densities for figures, and distances for judges."""

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
CLOSE = 0.1  # Kolmogorov-Smirnov distance below which curves look equal
POINTS = 121
BINS = 48
CONFIDENCE = 0.99
DEVIATIONS = 2.6  # standard deviations in half an interval of this confidence

Styles: TypeAlias = Mapping[str, Trace]


def densities(
    samples: Mapping[str, np.ndarray], low: float, high: float, smooth: bool = True
) -> pd.DataFrame:
    """Return a histogram of networks and kernel density estimates of the other samples.

    If `smooth` is False, because values pile up at the ends, all are histograms.
    """
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
    """Return the distance of every curve from that of the network, with an interval."""
    network = samples[NETWORK][np.isfinite(samples[NETWORK])]
    rows = [(NETWORK, 0.0, 0.0, 0.0, network.mean(), network.std())]
    for curve, values in samples.items():
        if curve != NETWORK:
            apart = distance(network, values, kind, confidence=CONFIDENCE)
            rows.append((curve, apart.value, apart.low, apart.high, values.mean(), values.std()))
    return pd.DataFrame(rows, columns=["curve", "distance", "low", "high", "mean", "std"])


def close(claim: str, line: Line, erratum: str = "") -> Finding:
    """Judge whether the distance is below CLOSE; None if its interval contains that border."""
    held = below(line.distance, CLOSE, line.high - line.distance)
    return finding(
        claim, held, f"KS {line.distance:.3f} [{line.low:.3f}, {line.high:.3f}]", erratum
    )


def power(frame: pd.DataFrame) -> Fit:
    """Fit the power of the width in distances."""
    noise = (frame.high - frame.distance) / DEVIATIONS
    return fit_noisy_exponent(frame.width, frame.distance, noise, confidence=CONFIDENCE)


def drawn(
    frame: pd.DataFrame, styles: Styles, names: Mapping[str, str], row: int = 0
) -> list[Trace]:
    """Draw networks as bars and the other curves as lines."""
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
    """Draw distances against widths, with intervals."""
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
