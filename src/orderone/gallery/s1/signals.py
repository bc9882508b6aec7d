"""S1 section 4.2: variance against mean of q_aa and c_ab, which follow no common law.

The paper looked for V ~ m^2 in these metrics of signals too, found no such law, and gives as the
reason that the mean of c_ab reaches its fixed point after several layers. It shows no figure. Here
signals start away from the fixed point, so that their means change at all.

A law would be one line for all networks and layers on logarithmic axes, as in Figure 4. The best
line is fitted with any power; there is a law if V is off by less than a tenth of its range, as in
`figure4`.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.figures import Figure
from orderone.gallery.frames import Frame
from orderone.gallery.judge import known
from orderone.gallery.s1.dropout_batches import brief, measure, stationary
from orderone.gallery.s1.dropout_pictures import KEEP, dots, layout, log
from orderone.gallery.s1.figure4 import KEEPS, NETWORKS, SYMBOLS
from orderone.theory import MeanField

QUANTITIES = {"q_aa": "q<sub>aa</sub>", "c_ab": "c<sub>ab</sub>"}
PART = 0.1  # of the axis of V, as in `figure4`
SETTLED = 0.1  # part of the first distance from the fixed point
LONGER = 4.0  # initial length in units of the fixed point


@dataclass(frozen=True)
class Settings:
    width: int
    depth: int
    networks: int
    batches: int = 8
    seed: int = 0


def parts(settings: Settings) -> Parts:
    return {name: lambda name=name: simulate(name, settings) for name in NETWORKS}


def simulate(activation: str, settings: Settings) -> Frame:
    """Return mean and variance over networks of both metrics, layer by layer."""
    weight_var, bias_var = NETWORKS[activation]
    frames = []
    for keep in KEEPS:
        network = MeanField(activation, weight_var=weight_var, bias_var=bias_var, keep=keep)
        seed = (settings.seed, 12, list(NETWORKS).index(activation), int(100 * keep))
        size = settings.networks // settings.batches
        start = (LONGER * stationary(network)[0], 0.0)
        batches = measure(
            network, settings.width, settings.depth, settings.batches, size, seed, start
        )
        pooled = batches.pooled()
        frame = pd.DataFrame({"keep": keep, "layer": np.arange(1, batches.depth + 1)})
        for quantity in QUANTITIES:
            frame[quantity], frame[f"{quantity}_var"], _ = pooled.of(quantity)
        frames.append(frame.assign(c_star=network.c_star))
    return brief(pd.concat(frames, ignore_index=True))


def judge(records: Records) -> list[Finding]:
    curves = pd.concat([frame.assign(activation=name) for name, frame in records.items()])
    findings = [_no_law(curves, quantity) for quantity in QUANTITIES]
    return [*findings, _settles(curves)]


def _no_law(curves: Frame, quantity: str) -> Finding:
    claim = f"No common law between variance and mean of {quantity}, as there is for gradients"
    chosen = curves[curves[quantity] > 0]  # a mean correlation of 0 has no logarithm
    mean = chosen[quantity].to_numpy(float)
    var = chosen[f"{quantity}_var"].to_numpy(float)
    if not known(mean, var) or (var <= 0).any() or len(mean) < 3:
        return Finding(claim, None, "a mean or variance is not known")
    x = np.log10(mean)
    y = np.log10(var)
    power, level = np.polyfit(x, y, 1)
    off = float(np.ptp(y - power * x - level))
    span = float(np.ptp(y))
    numbers = (
        f"best line V ∝ m^{power:.2f}: V spans {span:.1f} decades, and is off the line over"
        f" {off:.1f} decades"
    )
    return Finding(claim, off > PART * span, numbers)


def _settles(curves: Frame) -> Finding:
    """Judge the reason that the paper gives: means of c_ab do not change any more."""
    claim = "The mean of c_ab converges to a fixed point after several layers"
    lasts = []
    for _, curve in curves.groupby(["activation", "keep"], sort=False):
        distance = (curve.c_ab - curve.c_star).abs().to_numpy(float)
        lasts.append(distance[-1] / distance[0])
    holds = None
    if known(lasts):
        holds = bool(max(lasts) < SETTLED)
    depth = int(curves.layer.max())
    numbers = (
        f"distance from c* after {depth} layers, as a part of the first one: at most"
        f" {max(lasts):.3f}, for {len(lasts)} networks"
    )
    return Finding(claim, holds, numbers)


def draw(records: Records) -> list[Picture]:
    return [_picture(quantity, records) for quantity in QUANTITIES]


def _picture(quantity: str, records: Records) -> Picture:
    data = []
    for activation, frame in records.items():
        for keep, curve in frame.groupby("keep", sort=False):
            rate = float(keep)  # type: ignore[arg-type]
            style = {"size": 5, "color": KEEP[rate], "symbol": SYMBOLS[activation]}
            positive = curve[curve[quantity] > 0]
            label = f"{activation}, ρ = {rate:g}"
            variance = positive[f"{quantity}_var"]
            data.append(dots(positive[quantity], variance, label, KEEP[rate], marker=style))
    symbol = QUANTITIES[quantity]
    axes = layout(log(f"mean of {symbol}"), log(f"variance of {symbol}"), 480)
    figure: Figure = {"data": data, "layout": axes}
    alt = (
        f"Variance against mean of {quantity} on logarithmic axes: a curve of its own for each of"
        f" {len(data)} networks, which do not lie on one line."
    )
    caption = "One dot per layer. Colours: keep rates; symbols: activations."
    return Picture(f"Variance against mean of {quantity}", figure, alt, caption)


EXPERIMENT = Experiment(
    name="s1-signals",
    title="Variance against mean: signals",
    place="section 4.2",
    claim=(
        "Section 4.2: unlike gradients, q_aa and c_ab have no universal relation between variance"
        " and mean; the mean of c_ab converges to a fixed point."
    ),
    method=(
        "The networks of Figure 4, with two orthogonal inputs of four times the length of the fixed"
        " point; mean and variance over networks in every layer. A law would be one line on"
        " logarithmic axes, with any power, that misses V by less than a tenth of its range."
    ),
    scales={
        "small": Settings(width=200, depth=30, networks=320),
        "paper": Settings(width=500, depth=60, networks=800),
    },
    parts=parts,
    judge=judge,
    draw=draw,
)
