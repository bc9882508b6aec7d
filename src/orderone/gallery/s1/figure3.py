"""S1 Figure 3: g_aa and the l1 norm of two inputs' gradients, compared with chi_1^{L-l}, for ReLU,
tanh and hard tanh.

In the paper both change by chi_1 per layer, and (13) conjectures the same of g_ab. The l1 norm sums
absolute values, so it measures the sizes of gradients and not their agreement. Erratum S1.4: the
mean of g_ab with its sign changes by chi_2 (9) per layer, as far as it is above the noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeAlias

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.figures import Trace
from orderone.gallery.frames import Frame
from orderone.gallery.s1 import dropout_rates as rates
from orderone.gallery.s1.dropout_batches import Batches, brief, measure
from orderone.gallery.s1.dropout_pictures import KEEP, dots, layout, line, log, thinned
from orderone.theory import MeanField

PANELS = {"relu": (1.0, 0.1), "tanh": (1.4, 0.1), "hard-tanh": (1.4, 0.1)}  # weight_var, bias_var
TITLES = {"relu": "(a) ReLU", "tanh": "(b) Tanh", "hard-tanh": "(c) Hard tanh"}
KEEPS = (1.0, 0.9, 0.8)  # not printed in the paper
SIGNED_KEEP = 0.9
NEAR = 1 / 10  # of the depth: nearer to the output, the factors in front of the exponentials vary


@dataclass(frozen=True)
class Settings:
    width: int
    depth: int
    networks: int
    near_depth: int  # depth of the networks for the mean of g_ab with its sign
    near_networks: int
    batches: int = 8
    seed: int = 0


Simulated: TypeAlias = Callable[[float], Batches]  # of a keep rate


def parts(settings: Settings) -> Parts:
    measured = {}
    for activation in PANELS:
        simulated = cache(lambda keep, activation=activation: deep(activation, keep, settings))
        measured[f"{activation} curves"] = partial(all_curves, activation, simulated)
        measured[f"{activation} rates"] = partial(all_rates, activation, simulated, settings)
    return measured


def all_curves(activation: str, simulated: Simulated) -> pd.DataFrame:
    """Return the curves of every keep rate."""
    return pd.concat([curves(activation, keep, simulated(keep)) for keep in KEEPS])


def all_rates(activation: str, simulated: Simulated, settings: Settings) -> pd.DataFrame:
    """Return the rates of every keep rate, and the rate of g_ab with its sign."""
    rows: list[tuple[object, ...]] = []
    for keep in KEEPS:
        rows += far_rates(activation, keep, simulated(keep), settings)
    rows.append(signed_rate(activation, settings))
    return pd.DataFrame(rows, columns=rates.COLUMNS)


def network(activation: str, keep: float) -> MeanField:
    weight_var, bias_var = PANELS[activation]
    return MeanField(activation, weight_var=weight_var, bias_var=bias_var, keep=keep)


def deep(activation: str, keep: float, settings: Settings) -> Batches:
    seed = (settings.seed, 6, list(PANELS).index(activation), int(100 * keep))
    size = settings.networks // settings.batches
    return measure(
        network(activation, keep), settings.width, settings.depth, settings.batches, size, seed
    )


def curves(activation: str, keep: float, batches: Batches) -> Frame:
    """Return every third layer and the last; chi_1^{L-l} starts from g_aa of the last layer."""
    frame = rates.curve(batches.pooled(), ("g_aa", "l1_g_ab")).drop(
        columns=["g_aa_var", "l1_g_ab_var"]
    )
    powers = frame.g_aa.iloc[-1] * network(activation, keep).chi1 ** (batches.depth - frame.layer)
    return brief(thinned(frame.assign(keep=keep, chi1_power=powers), 3))


def far_rates(
    activation: str, keep: float, batches: Batches, settings: Settings
) -> list[tuple[object, ...]]:
    window = int(NEAR * settings.depth), settings.depth - 2
    net = network(activation, keep)
    return [
        rates.line(f"{activation} ρ = {keep:g}", net, batches, quantity, settings.width, *window)
        for quantity in ("g_aa", "l1_g_ab")
    ]


def signed_rate(activation: str, settings: Settings) -> tuple[object, ...]:
    net = network(activation, SIGNED_KEEP)
    size = settings.near_networks // settings.batches
    seed = (settings.seed, 7, list(PANELS).index(activation))
    batches = measure(net, settings.width, settings.near_depth, settings.batches, size, seed)
    far = rates.resolved(net, batches, settings.width)
    return rates.line(
        f"{activation} ρ = {SIGNED_KEEP:g}", net, batches, "g_ab", settings.width, 1, far
    )


def judge(records: Records) -> list[Finding]:
    findings = []
    for activation in PANELS:
        lines = records[f"{activation} rates"]
        for quantity, name in (("g_aa", "g_aa"), ("l1_g_ab", "the l1 norm g̃_ab")):
            some = lines[lines.quantity == quantity]
            holds = rates.all_of(some, lambda each: rates.agrees(each, "chi1"))
            findings.append(
                Finding(
                    f"{activation}: {name} changes by χ₁ per layer", holds, rates.said(some, "chi1")
                )
            )
    lines = pd.concat([records[f"{activation} rates"] for activation in PANELS])
    return [*findings, *signed(lines[lines.quantity == "g_ab"])]


def signed(lines: Frame) -> list[Finding]:
    conjecture = rates.all_of(lines, lambda each: rates.agrees(each, "chi1"))
    law = rates.all_of(lines, lambda each: rates.agrees(each, "law"))
    return [
        Finding(
            "g_ab changes by χ₁ per layer too, for every activation (13)",
            conjecture,
            rates.said(lines, "chi1"),
        ),
        Finding(
            "The mean of g_ab with its sign falls as theory predicts, by χ₂ per layer far from the"
            " output",
            law,
            rates.said(lines, "law", "chi2"),
            "corrected",
            "S1.4",
        ),
    ]


def draw(records: Records) -> list[Picture]:
    return [_picture(activation, records[f"{activation} curves"]) for activation in PANELS]


def _picture(activation: str, frame: Frame) -> Picture:
    data = [line([None], [None], name, "#888888", dash) for name, dash in STYLES.values()]
    for keep, curve in frame.groupby("keep", sort=False):
        colour = KEEP[float(keep)]
        name = f"ρ = {keep:g}"  # type: ignore[arg-type]
        group: Trace = {"legendgroup": name}
        some = thinned(curve.reset_index(drop=True), 6)
        data.append(dots(some.layer, some.g_aa, name, colour, **group))
        for quantity, (words, dash) in STYLES.items():
            data.append(
                line(
                    curve.layer,
                    curve[quantity],
                    f"{name}, {words}",
                    colour,
                    dash,
                    showlegend=False,
                    **group,
                )
            )
    weight_var, bias_var = PANELS[activation]
    title = f"{TITLES[activation]}: σ_w² = {weight_var:g}, σ_b² = {bias_var:g}"
    decades = np.log10(frame.g_aa.max() / frame.g_aa.min())
    alt = (
        "g_aa, the l1 norm and powers of χ₁ are parallel for three keep rates, over"
        f" {decades:.0f} decades."
    )
    caption = (
        "Solid with dots: g_aa. Dashed: the l1 norm of two inputs. Dotted: χ₁^(L−l) times g_aa of"
        " the last layer; nothing is fitted."
    )
    return Picture(
        title, {"data": data, "layout": layout("layer l", log("gradient metric"))}, alt, caption
    )


STYLES = {
    "g_aa": ("g<sub>aa</sub>", "solid"),
    "l1_g_ab": ("g̃<sub>ab</sub>", "dash"),
    "chi1_power": ("χ<sub>1</sub><sup>L−l</sup>", "dot"),
}

EXPERIMENT = Experiment(
    name="s1-figure3",
    title="Gradient metrics of nonlinear networks",
    place="Figure 3 and (13)",
    claim=(
        "For ReLU, tanh and hard tanh with dropout, g_aa and the l1 norm of two inputs' gradients"
        " change by χ₁ per layer, and so does g_ab."
    ),
    method=(
        "Random dropout networks with signals at the fixed point, forward and backward weights"
        " shared. Rates are slopes of the logarithm against the layer, with 99 % intervals by the"
        " jackknife over batches of networks, compared with `theory.meanfield.gradient_law`. The"
        " window for g_ab ends where its mean is below the noise."
    ),
    scales={"small": Settings(500, 200, 96, 30, 1600), "paper": Settings(500, 200, 400, 40, 16000)},
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S1.4",),
)
