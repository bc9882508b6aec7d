"""Variance V against mean m over networks by layer: the power in V = k m^power, and V/m^2.

Erratum S1.9 of S1 ("Mean field theory for deep dropout networks"): V/m^2 is not constant. It grows
with the distance k = L - l from the output and falls with the width, about as k/N, so the power is
below 2 where gradients vanish towards the input and above 2 where they explode.
"""

from typing import TypeAlias

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Picture
from orderone.gallery.figures import Figure, Trace
from orderone.gallery.frames import Frame, Row
from orderone.gallery.judge import known
from orderone.gallery.s1.dropout_batches import Batches, Moments, brief
from orderone.gallery.s1.dropout_pictures import NEUTRAL, dots, layout, line, log, thinned
from orderone.measure import fit_exponent

QUANTITIES = {
    "g_aa": "g<sub>aa</sub>",
    "abs_g_ab": "|g<sub>ab</sub>|",
    "l1_g_ab": "g̃<sub>ab</sub>",
}
WORDS = {"g_aa": "g_aa", "abs_g_ab": "|g_ab|", "l1_g_ab": "the l1 norm g̃_ab"}
NEAR = (1, 4)
FAR = (0.8, 1.0)  # V/m^2 is compared at NEAR layers from the output and FAR parts of the depth
COLUMNS = [
    "quantity",
    "decades",
    "power",
    "low",
    "high",
    "near",
    "far",
    "growth_low",
    "growth_high",
]
LEAST_DECADES = 1.0  # range of the mean that a fit of the power needs
STEPS = 30  # layers of a curve that are stored for drawing

Series: TypeAlias = dict[str, tuple[Frame, Trace]]  # name: curve and marker


def curves(batches: Batches) -> Frame:
    """Return layer, mean and variance of each quantity."""
    pooled = batches.pooled()
    frame = pd.DataFrame({"layer": np.arange(1, batches.depth + 1)})
    for quantity in QUANTITIES:
        frame[quantity], frame[f"{quantity}_var"], _ = pooled.of(quantity)
    return brief(thinned(frame, max(1, batches.depth // STEPS)))


def laws(batches: Batches) -> list[tuple[object, ...]]:
    """Return a row of `COLUMNS` for each quantity.

    `near` and `far` are V/m^2 near the output and near the input; `growth` is the logarithm of
    their ratio.
    """
    rows = []
    for quantity in QUANTITIES:
        power = batches.jackknife(lambda moments, q=quantity: _power(moments, q))
        growth = batches.jackknife(lambda moments, q=quantity: _far(moments, q) - _near(moments, q))
        pooled = batches.pooled()
        mean = pooled.of(quantity)[0]
        decades = float(np.ptp(np.log10(mean)))
        ends = float(np.exp(_near(pooled, quantity))), float(np.exp(_far(pooled, quantity)))
        rows.append(
            (
                quantity,
                decades,
                power.exponent,
                power.low,
                power.high,
                *ends,
                growth.low,
                growth.high,
            )
        )
    return rows


def _power(moments: Moments, quantity: str) -> float:
    mean, var, _ = moments.of(quantity)
    return fit_exponent(mean, var, correction=False).exponent


def log_ratio(moments: Moments, quantity: str, near: int, far: int) -> float:
    """Return the mean logarithm of V/m^2 over distances near .. far from the output."""
    mean, var, _ = moments.of(quantity)
    window = len(mean) - 1 - np.arange(near, far + 1)
    return float(np.log(var[window] / mean[window] ** 2).mean())


def _near(moments: Moments, quantity: str) -> float:
    return log_ratio(moments, quantity, *NEAR)


def _far(moments: Moments, quantity: str) -> float:
    return log_ratio(moments, quantity, *(int(part * len(moments.mean)) - 1 for part in FAR))


def is_two(lines: Frame) -> bool | None:
    """Return whether all intervals contain 2; None if there are none, or one is so wide that it
    contains 1.5 or 2.5 too."""
    lines = lines[lines.decades >= LEAST_DECADES]
    if not known(lines.low, lines.high):
        return None
    if not ((lines.low <= 2) & (lines.high >= 2)).all():
        return False
    if (lines.high - lines.low > 1).any():
        return None
    return True


def power(each: Row) -> str:
    """Return the power of one line as text."""
    if each.decades < LEAST_DECADES:
        return f"none, m spans {each.decades:.1f} decades"
    return f"{each.power:.2f} [{each.low:.2f}, {each.high:.2f}]"


def picture(title: str, quantity: str, series: Series, alt: str, caption: str) -> Picture:
    """Draw V against m, a series of dots for each network, and a line V ~ m^2 through their
    middle."""
    data = [
        dots(
            curve[quantity],
            curve[f"{quantity}_var"],
            name,
            style["color"],
            marker={"size": 5} | style,
        )
        for name, (curve, style) in series.items()
    ]
    every = pd.concat([curve for curve, _ in series.values()])
    ends = np.array([every[quantity].min(), every[quantity].max()])
    height = (every[f"{quantity}_var"] / every[quantity] ** 2).median()
    data.append(line(ends, height * ends**2, "V ∝ m²", NEUTRAL))
    symbol = QUANTITIES[quantity]
    figure: Figure = {
        "data": data,
        "layout": layout(log(f"mean of {symbol}"), log(f"variance of {symbol}"), 520),
    }
    return Picture(title, figure, alt, caption)
