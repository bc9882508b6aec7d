"""Factors by which gradient metrics change per layer, measured over a window of layers, and
predicted.

A window consists of distances k = L - l from the output. Far from the output the mean of g_ab with
its sign is smaller than the noise of |g_ab| (erratum S1.4 of S1, "Mean field theory for deep
dropout networks"), so its window ends where the predicted mean is `RESOLVED` standard errors.
"""

import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from orderone.gallery.frames import Frame, Line
from orderone.gallery.judge import known, together
from orderone.gallery.s1.dropout_batches import Batches, Moments
from orderone.theory import MeanField
from orderone.theory.meanfield import gradient_law

RESOLVED = 5.0
FEWEST = 4  # least number of layers in a window
SETTLED = 0.01  # relative distance of the predicted rate from its limit at which it counts as there
DEEP = 300  # layers after which the predicted rate is at its limit
# tolerance of rates at finite width, over the width; V/m^2 grows by up to 11/N per layer
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
    """Return a row of `COLUMNS`; `law` is the factor of the predicted curve, `expected`, over the
    same window."""
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
    """Return the largest distance at which the predicted mean of g_ab is above the noise."""
    pooled = batches.pooled()
    (g_ab, _, se), expected = pooled.of("g_ab"), theory(network, batches.depth, width, "g_ab")
    above_noise = expected * g_ab[-1] / expected[-1] > RESOLVED * se
    lost = np.flatnonzero(~above_noise[::-1])
    return int(lost[0] - 1 if len(lost) else len(above_noise) - 1)


def local(network: MeanField, quantity: str) -> np.ndarray:
    """Return the predicted factor from distance k to k + 1, for k = 0, 1, ..."""
    curve = theory(network, DEEP, 1, quantity)[::-1]
    return curve[1:] / curve[:-1]


def limit(network: MeanField, quantity: str) -> float:
    """Return the predicted factor per layer far from the output; chi_2 for correlations."""
    if quantity == "c_ab":
        return network.chi2
    return float(local(network, quantity)[-1])


def settled(network: MeanField, quantity: str) -> int:
    """Return the distance from which the predicted factor is close to its limit; nearer to the
    output, the factors in front of the exponentials vary."""
    factors = local(network, quantity)
    return int(np.flatnonzero(np.abs(factors / factors[-1] - 1) > SETTLED).max(initial=-1) + 1)


def theory(network: MeanField, depth: int, width: int, quantity: str) -> np.ndarray:
    """Return the predicted curve up to a constant; |g_ab| on its floor and the l1 norm have that of
    g_aa."""
    law = gradient_law(network, depth, width)
    return law.g_ab if quantity == "g_ab" else law.g_aa


def _slope(curve: np.ndarray, window: np.ndarray, weights: np.ndarray) -> float:
    """Return the slope of the logarithm against the distance."""
    y = np.log(np.abs(curve[len(curve) - 1 - window]))
    x = window - weights @ window / weights.sum()
    return float(weights * x @ y / (weights @ x**2))


def agrees(line: Line, column: str) -> bool | None:
    """Return whether the interval, with a tolerance for finite width, contains this rate; None if
    it is too wide to decide."""
    if not known([line.rate, line.low, line.high]):
        return None
    room = 1 + FINITE / line.width
    if not line.low / room <= line[column] <= line.high * room:
        return False
    return True if is_narrow(line) else None


def is_narrow(line: Line) -> bool:
    """Return whether the interval is narrow enough to distinguish chi_1 from chi_2; one percent if
    these are equal."""
    return line.high / line.low - 1 < max(abs(line.chi1 / line.chi2 - 1) / 2, 0.01)


def all_of(lines: Frame, decide: Callable[[Line], bool | None]) -> bool | None:
    """Join the verdicts on all lines: one False refutes the claim, one None makes it unclear."""
    return together(decide(each) for _, each in lines.iterrows())


def said(lines: Frame, *columns: str) -> str:
    """Return measured and predicted rates as text."""
    names = {"law": "theory", "limit": "its limit", "chi1": "χ₁", "chi2": "χ₂"}
    sentences = []
    for _, line in lines.iterrows():
        sentence = f"{line.network}: {measured(line)}"
        for column in columns:
            sentence += f", {names[column]} {line[column]:.4f}"
        sentences.append(sentence)
    return "; ".join(sentences)


def measured(each: Line) -> str:
    """Return the measured rate as text; distances of signals count from the input."""
    if each.quantity in ("c_ab", "q_ab"):
        where = f"l−1 = {each.near}…{each.far}"
    else:
        where = f"L−l = {each.near}…{each.far}"
    if math.isnan(each.rate):
        return f"too few layers above the noise, {where}"
    return f"{each.rate:.4f} [{each.low:.4f}, {each.high:.4f}] over {where}"


def curve(moments: Moments, quantities: tuple[str, ...]) -> Frame:
    """Return a frame with one line per layer, and mean and variance of each quantity."""
    layers = pd.DataFrame({"layer": np.arange(1, len(moments.mean) + 1)})
    for quantity in quantities:
        layers[quantity], layers[f"{quantity}_var"], _ = moments.of(quantity)
    return layers
