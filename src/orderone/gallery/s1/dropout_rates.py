"""By which factor gradient metrics change a layer, measured over a window of layers, beside what
theory says of the same.

A window is given by distances k = L - l from the output. The mean of g_ab with its sign sinks into
the noise of |g_ab| (erratum S1.4), so its window ends where theory's mean is `RESOLVED` standard
errors: what lies beyond cannot be told.
"""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from orderone.gallery.frames import Frame, Line
from orderone.gallery.judge import known
from orderone.gallery.s1.dropout_batches import Batches, Moments
from orderone.theory import MeanField
from orderone.theory.meanfield import gradient_law

RESOLVED = 5.0
FEWEST = 4  # layers of a window
SETTLED = 0.01  # of a rate: how close to its limit theory's own curve is to be
DEEP = 300  # layers after which it is there
# over the width: by how much rates of finite networks may differ; V/m^2 grows by up to 11/N a layer
FINITE = 5.0
COLUMNS = [
    "network",
    "quantity",
    "width",
    "near",
    "far",
    "rate",
    "low",
    "high",
    "law",
    "limit",
    "chi1",
    "chi2",
]


def line(
    label: str,
    network: MeanField,
    batches: Batches,
    quantity: str,
    width: int,
    near: int,
    far: int,
    expected: np.ndarray | None = None,
) -> tuple[object, ...]:
    """A row of `COLUMNS`; `law` is the factor of theory's own curve, `expected`, over the same
    window."""
    first = (label, quantity, width, near, far)
    last = (limit(network, quantity), network.chi1, network.chi2)
    if far - near < FEWEST:
        return *first, *[math.nan] * 4, *last
    mean, _, se = batches.pooled().of(quantity)
    window = np.arange(near, far + 1)
    weights = (mean / se)[batches.depth - 1 - window] ** 2
    fit = batches.jackknife(lambda moments: _slope(moments.of(quantity)[0], window, weights))
    if expected is None:
        expected = theory(network, batches.depth, width, quantity)
    law = _slope(expected, window, weights)
    return *first, *map(math.exp, (fit.exponent, fit.low, fit.high, law)), *last


def resolved(network: MeanField, batches: Batches, width: int) -> int:
    """The largest distance at which g_ab can be told from 0, for all that theory knows."""
    pooled = batches.pooled()
    (g_ab, _, se), expected = pooled.of("g_ab"), theory(network, batches.depth, width, "g_ab")
    seen = expected * g_ab[-1] / expected[-1] > RESOLVED * se
    lost = np.flatnonzero(~seen[::-1])
    return int(lost[0] - 1 if len(lost) else len(seen) - 1)


def local(network: MeanField, quantity: str) -> np.ndarray:
    """Theory's factor from distance k to k + 1, for k = 0, 1, ..."""
    curve = theory(network, DEEP, 1, quantity)[::-1]
    return curve[1:] / curve[:-1]


def limit(network: MeanField, quantity: str) -> float:
    """Theory's factor a layer far from the output; correlations of signals go with chi_2."""
    if quantity == "c_ab":
        return network.chi2
    return float(local(network, quantity)[-1])


def settled(network: MeanField, quantity: str) -> int:
    """The distance from which theory's factor is close to its limit: before, sums in front of
    exponentials matter."""
    factors = local(network, quantity)
    return int(np.flatnonzero(np.abs(factors / factors[-1] - 1) > SETTLED).max(initial=-1) + 1)


def theory(network: MeanField, depth: int, width: int, quantity: str) -> np.ndarray:
    """Up to a factor; |g_ab| on its floor and the l1 norm go with g_aa."""
    law = gradient_law(network, depth, width)
    return law.g_ab if quantity == "g_ab" else law.g_aa


def _slope(curve: np.ndarray, window: np.ndarray, weights: np.ndarray) -> float:
    """Of the logarithm against the distance."""
    y = np.log(np.abs(curve[len(curve) - 1 - window]))
    x = window - weights @ window / weights.sum()
    return float(weights * x @ y / (weights @ x**2))


def agrees(line: Line, column: str) -> bool | None:
    """Whether the interval, widened by what finite width does, holds this rate; None if it could
    not refute it."""
    if not known([line.rate, line.low, line.high]):
        return None
    room = 1 + FINITE / line.width
    if not line.low / room <= line[column] <= line.high * room:
        return False
    return True if tells(line) else None


def tells(line: Line) -> bool:
    """Narrow enough to tell chi_1 from chi_2, or of a hundredth where these are the same."""
    return line.high / line.low - 1 < max(abs(line.chi1 / line.chi2 - 1) / 2, 0.01)


def all_of(lines: Frame, told: Callable[[Line], bool | None]) -> bool | None:
    """Refuted by one; unclear by one."""
    answers = [told(each) for _, each in lines.iterrows()]
    if False in answers:
        return False
    if None in answers or not answers:
        return None
    return True


def said(lines: Frame, *columns: str) -> str:
    """Return in words what was measured, and what it should be."""
    names = {"law": "theory", "limit": "its limit", "chi1": "χ₁", "chi2": "χ₂"}
    sentences = []
    for _, line in lines.iterrows():
        sentence = f"{line.network}: {measured(line)}"
        for column in columns:
            sentence += f", {names[column]} {line[column]:.4f}"
        sentences.append(sentence)
    return "; ".join(sentences)


def measured(each: Line) -> str:
    """Signals are followed from the input, gradients from the output."""
    if each.quantity in ("c_ab", "q_ab"):
        where = f"l−1 = {each.near}…{each.far}"
    else:
        where = f"L−l = {each.near}…{each.far}"
    if math.isnan(each.rate):
        return f"too few layers above the noise, {where}"
    return f"{each.rate:.4f} [{each.low:.4f}, {each.high:.4f}] over {where}"


def curve(moments: Moments, quantities: tuple[str, ...]) -> Frame:
    """A column for the mean of each quantity and one for its variance; one line for each layer."""
    layers = pd.DataFrame({"layer": np.arange(1, len(moments.mean) + 1)})
    for quantity in quantities:
        layers[quantity], layers[f"{quantity}_var"], _ = moments.of(quantity)
    return layers
