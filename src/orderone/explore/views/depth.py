"""The depth report of a random network of finite width, and the densities behind its numbers."""

import numpy as np

from orderone.core.errors import one_of
from orderone.explore.query import Query
from orderone.theory.limits import depth_law
from orderone.theory.limits.depth_report import judged
from orderone.theory.limits.shaped import SMOOTH

SKIPS = ("none", "scaled", "factor")
BINS = 40
OUTLIERS = 5e-4  # part cut off at either end, so that the histogram shows the rest
COLLAPSED = 0.05  # if the median of 1 - rho is below this, the page shows its logarithm
SMALLEST = 1e-15


def depth(query: Query) -> dict[str, object]:
    """Return how norms and correlations spread at this width and depth."""
    width = query.whole("width")
    layers = query.whole("depth")
    rho0 = query.number("rho0")
    branches = {"none": None, "scaled": True, "factor": query.number("factor")}
    branch = branches[query.word("skips", SKIPS)]
    activation, phi = _activation(query.word("activation"), query.flag("shaped"))
    a = query.number("a")
    query.done()
    law = depth_law(width, layers, activation, branch, rho0, phi=phi, a=a)
    report = judged(law)
    low, middle, high = report.correlation.values()
    return {
        "regime": report.regime,
        "ratio": report.ratio,
        "activation": report.activation,
        "residual": report.residual,
        "growth": report.growth,
        "norm_spread": report.norm_spread,
        "correlation": {"low": low, "median": middle, "high": high},
        "reasons": report.reasons,
        "remedies": report.remedies,
        "caveat": report.caveat,
        "norms": _density(law.log_norms),
        "correlations": _correlation_density(law.correlations),
    }


def _activation(name: str, shaped: bool) -> tuple[str, str]:
    """Return the arguments `activation` and `phi` of `depth_report`."""
    if not shaped:
        return name, "tanh"
    if name == "relu":
        return "shaped-relu", "tanh"
    return "shaped-smooth", one_of(name, ("relu", *SMOOTH), "activation to shape")


def _correlation_density(rho: np.ndarray) -> dict[str, object]:
    if 1 - np.median(rho) < COLLAPSED:
        return {"scale": "log10(1 − ρ)", **_density(np.log10(np.maximum(1 - rho, SMALLEST)))}
    return {"scale": "ρ", **_density(rho, -1.0, 1.0)}


def _density(samples: np.ndarray, *ends: float) -> dict[str, object]:
    """Return a histogram with bins of equal width, and three quantiles."""
    low, high = ends or np.quantile(samples, [OUTLIERS, 1 - OUTLIERS])
    if high - low < 1e-9 * max(1.0, abs(low)):  # all samples are equal
        low = low - 0.5
        high = high + 0.5
    counts, edges = np.histogram(samples, BINS, (low, high))
    heights = counts / samples.size / (edges[1] - edges[0])
    return {
        "x": (edges[1:] + edges[:-1]) / 2,
        "y": heights,
        "quantiles": np.quantile(samples, [0.05, 0.5, 0.95]),
    }
