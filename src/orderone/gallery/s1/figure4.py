"""S1 Figure 4: variance against mean of g_aa, |g_ab| and the l1 norm, for four activations and
several keep rates.

The paper reads V ~ m^2 off axes of thirty decades, with one line for all networks. Erratum S1.9:
powers are near 2 but not 2, and the curves are not one line, because V/m^2 grows with the distance
from the output. On such axes neither is visible.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Experiment, Finding, Grid, Parts, Picture, Records
from orderone.gallery.figures import Figure
from orderone.gallery.frames import Frame
from orderone.gallery.judge import known
from orderone.gallery.s1 import variance_laws as laws
from orderone.gallery.s1.dropout_batches import Batches, brief, measure
from orderone.gallery.s1.dropout_pictures import KEEP, SERIES, layout, line, log
from orderone.theory import MeanField

NETWORKS = {
    "linear": (0.5, 0.1),
    "relu": (1.0, 0.1),
    "tanh": (1.4, 0.1),
    "hard-tanh": (1.4, 0.1),
}  # as in Figures 2, 3
SYMBOLS = {"linear": "circle", "relu": "square", "tanh": "diamond", "hard-tanh": "cross"}
KEEPS = (0.9, 0.8, 0.7)  # not printed in the paper


@dataclass(frozen=True)
class Settings:
    width: int
    depth: int
    networks: int
    batches: int = 16
    seed: int = 0


def parts(settings: Settings) -> Parts:
    measured: dict[str, Any] = {}
    for activation in NETWORKS:
        simulated = cache(lambda keep, activation=activation: simulate(activation, keep, settings))
        measured[f"{activation} curves"] = lambda s=simulated: pd.concat(
            [laws.curves(s(k)).assign(keep=k) for k in KEEPS]
        )
        measured[f"{activation} laws"] = lambda a=activation, s=simulated: fitted(a, s)
    return measured


def simulate(activation: str, keep: float, settings: Settings) -> Batches:
    weight_var, bias_var = NETWORKS[activation]
    network = MeanField(activation, weight_var=weight_var, bias_var=bias_var, keep=keep)
    seed = (settings.seed, 8, list(NETWORKS).index(activation), int(100 * keep))
    return measure(
        network,
        settings.width,
        settings.depth,
        settings.batches,
        settings.networks // settings.batches,
        seed,
    )


def fitted(activation: str, simulated: Callable[[float], Batches]) -> Frame:
    rows = []
    for keep in KEEPS:
        for row in laws.laws(simulated(keep)):
            rows.append((activation, keep, *row))
    return brief(pd.DataFrame(rows, columns=["activation", "keep", *laws.COLUMNS]))


def _all(records: Records) -> Frame:
    return pd.concat([records[f"{activation} laws"] for activation in NETWORKS])


def judge(records: Records) -> list[Finding]:
    lines = _all(records)
    findings = []
    for quantity, words in laws.WORDS.items():
        some = lines[lines.quantity == quantity]
        holds = laws.is_two(some)
        findings.append(
            Finding(f"V ∝ m² for {words}: every power is consistent with 2", holds, _powers(some))
        )
    return [*findings, _one_line(lines), _grows(lines), _unseen(lines)]


def _powers(lines: Frame) -> str:
    return "; ".join(f"{e.activation} ρ = {e.keep:g}: {laws.power(e)}" for e in lines.itertuples())


def _one_line(lines: Frame) -> Finding:
    """Judge whether V/m^2 has one value, as on one line of slope 2, within the factor by which each
    value is known."""
    verdicts = []
    ranges = []
    for quantity, some in lines.groupby("quantity", sort=False):
        levels = pd.concat([some.near, some.far])
        factor = np.exp((some.growth_high - some.growth_low).median())
        verdicts.append(bool(levels.max() / levels.min() < factor))
        ranges.append(
            f"{laws.WORDS[str(quantity)]}: V/m² from {levels.min():.2g} to {levels.max():.2g}, "
            f"each known within a factor {factor:.1f}"
        )
    claim = "All networks lie on one line, for every activation, keep rate and layer"
    if known(lines.near, lines.far, lines.growth_low, lines.growth_high):
        holds = all(verdicts)
    else:
        holds = None
    return Finding(claim, holds, "; ".join(ranges))


def _grows(lines: Frame) -> Finding:
    """Judge growth: False if an interval is below 0, None if one contains 0."""
    holds = None
    if known(lines.growth_low, lines.growth_high):
        if (lines.growth_high < 0).any():
            holds = False
        elif (lines.growth_low > 0).all():
            holds = True
    numbers = "; ".join(
        f"{e.activation} ρ = {e.keep:g} {laws.WORDS[e.quantity]}: {e.near:.2g} to {e.far:.2g}"
        for e in lines.itertuples()
        if e.quantity != "l1_g_ab"
    )
    claim = "Powers are not exactly 2, because V/m² grows with the distance from the output"
    return Finding(claim, holds, numbers, "corrected", "S1.9")


def _unseen(lines: Frame) -> Finding:
    """Judge whether a line of slope 2, which misses V by the range of V/m^2, is right within a
    tenth of the axis."""
    spans = [
        (2 * some.decades.max(), np.ptp(np.log10(pd.concat([some.near, some.far]))))
        for _, some in lines.groupby("quantity")
    ]
    numbers = "; ".join(f"V spans {all_of:.0f} decades, V/m² {part:.1f}" for all_of, part in spans)
    claim = "On axes over all decades this cannot be seen: V ∝ m² within a tenth of the axis"
    if known(lines.near, lines.far, lines.decades):
        holds = all(part < all_of / 10 for all_of, part in spans)
    else:
        holds = None
    return Finding(claim, holds, numbers, "corrected", "S1.9")


def draw(records: Records) -> list[Picture | Grid]:
    pictures: list[Picture | Grid] = []
    for letter, quantity in zip("abc", laws.QUANTITIES, strict=True):
        pictures.append(_picture(letter, quantity, records))
    return [*pictures, _ratios(records), _table(records)]


def _picture(letter: str, quantity: str, records: Records) -> Picture:
    series = {}
    for activation in NETWORKS:
        for keep, curve in records[f"{activation} curves"].groupby("keep", sort=False):
            rate = float(keep)  # type: ignore[arg-type]
            style = {"color": KEEP[rate], "symbol": SYMBOLS[activation]}
            series[f"{activation}, ρ = {keep:g}"] = curve, style
    lines = _all(records)
    powers = lines[(lines.quantity == quantity) & (lines.decades >= laws.LEAST_DECADES)].power
    alt = (
        f"Variance against mean of {laws.WORDS[quantity]} on logarithmic axes: networks close to"
        " one line of slope 2, "
    )
    alt += f"with fitted powers from {powers.min():.2f} to {powers.max():.2f}."
    caption = "One dot per layer. Colours: keep rates; symbols: activations. Line: slope 2."
    return laws.picture(f"({letter}) {laws.WORDS[quantity]}", quantity, series, alt, caption)


def _ratios(records: Records) -> Picture:
    """Draw V/m^2, which is not visible on the axes of the paper."""
    data = []
    last = []
    for colour, activation in zip(SERIES, NETWORKS, strict=False):
        curve = records[f"{activation} curves"]
        curve = curve[curve.keep == KEEPS[0]]
        ratio = curve.g_aa_var / curve.g_aa**2
        data.append(line(curve.layer.max() - curve.layer, ratio, activation, colour))
        last.append(ratio.iloc[0] / ratio.iloc[-1])
    alt = (
        f"V/m² of g_aa against the distance from the output: it grows by factors of {min(last):.0f}"
        f" to {max(last):.0f}."
    )
    figure: Figure = {
        "data": data,
        "layout": layout(
            "distance from the output L − l", log("V / m² of g<sub>aa</sub>", dtick="D2")
        ),
    }
    caption = (
        f"Not in the paper: V/m² would be constant if V ∝ m² (erratum S1.9). ρ = {KEEPS[0]:g}."
    )
    return Picture("(d) V/m² is not constant", figure, alt, caption)


def _table(records: Records) -> Grid:
    rows = [
        (
            e.activation,
            f"{e.keep:g}",
            laws.WORDS[e.quantity],
            laws.power(e),
            f"{e.near:.2g}",
            f"{e.far:.2g}",
        )
        for e in _all(records).itertuples()
    ]
    head = ("activation", "ρ", "quantity", "power", "V/m² at the output", "at the input")
    return Grid("Powers in V ∝ m^power, with 99 % intervals", head, rows)


EXPERIMENT = Experiment(
    name="s1-figure4",
    title="Variance against mean: activations",
    place="Figure 4",
    claim=(
        "The variance over networks of each gradient metric is proportional to the square of its"
        " mean, on one line for all activations and keep rates."
    ),
    method=(
        "Random dropout networks with signals at the fixed point; mean and variance over networks"
        " in every layer; a power is fitted over layers, with a 99 % interval by the jackknife over"
        " batches of networks (layers are not independent)."
    ),
    scales={
        "small": Settings(width=200, depth=100, networks=320),
        "paper": Settings(width=500, depth=200, networks=800),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S1.9",),
)
