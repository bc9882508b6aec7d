"""S1 Table 1: the depth scales of correlations and gradients, predicted and measured.

    q_ab: |c^l - c*| ~ e^{-l/xi_2}  (6)        g_aa ~ e^{-(L-l)/xi_1}  (11)        g_ab ~
                                               e^{-(L-l)/xi}

The paper gives g_ab the scale xi_1 under realistic conditions, and xi_2 under the assumption that
forward and backward weights are independent. Erratum S1.4: the mean of g_ab changes by chi_2 per
layer; the noise of |g_ab| changes by chi_1. Erratum S1.5: where the square of lambda = dq'/dq is
larger than chi_2, as in linear networks with sw2 > rho^2, the mean changes by that square, because
weights are shared. The last column of the table, the trainable length, is Figure 7.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Experiment, Finding, Grid, Parts, Picture, Records
from orderone.gallery.frames import Frame, Row
from orderone.gallery.s1 import dropout_rates as rates
from orderone.gallery.s1.dropout_batches import Batches, brief, measure, stationary
from orderone.gallery.s1.dropout_pictures import SERIES, dots, layout, log
from orderone.theory import MeanField


class Network(NamedTuple):
    activation: str
    weight_var: float
    bias_var: float
    keep: float

    def __str__(self) -> str:
        return f"{self.activation} ρ = {self.keep:g}"

    @property
    def mean_field(self) -> MeanField:
        return MeanField(
            self.activation, weight_var=self.weight_var, bias_var=self.bias_var, keep=self.keep
        )


NETWORKS = (
    Network("linear", 0.5, 0.1, 0.9),
    Network("linear", 0.5, 0.1, 0.6),  # sw2 > rho^2: erratum S1.5
    Network("relu", 1.0, 0.1, 0.9),
    Network("tanh", 1.4, 0.1, 0.9),
    Network("hard-tanh", 1.4, 0.1, 0.9),
)
STARTS = (0.0, 0.9)  # two initial correlations; their difference is measured layer by layer
SETTLED = 2  # first layers, which are not part of the fit
NAMES = {"c_ab": "q_ab", "g_aa": "g_aa", "g_ab": "g_ab"}
# realistic; independent weights
PRINTED = {"q_ab": ("ξ₂", "ξ₂"), "g_aa": ("ξ₁", "ξ₁"), "g_ab": ("ξ₁", "ξ₂")}


@dataclass(frozen=True)
class Settings:
    width: int
    depth: int
    networks: int
    batches: int = 8
    seed: int = 0


def parts(settings: Settings) -> Parts:
    measured: dict[str, Any] = {}
    for i, network in enumerate(NETWORKS):
        measured[f"{network.activation} {network.keep:g}"] = lambda n=network, i=i: brief(
            pd.DataFrame(
                [correlation(n, i, settings), *gradients(n, i, settings)], columns=rates.COLUMNS
            )
        )
    return measured


def gradients(network: Network, number: int, settings: Settings) -> list[tuple[object, ...]]:
    net = network.mean_field
    size = settings.networks // settings.batches
    batches = measure(
        net, settings.width, settings.depth, settings.batches, size, (settings.seed, 10, number)
    )
    ends = {"g_aa": settings.depth - 1, "g_ab": rates.resolved(net, batches, settings.width)}
    lines: list[tuple[object, ...]] = []
    for quantity, far in ends.items():
        near = rates.settled(net, quantity)
        lines.append(rates.line(str(network), net, batches, quantity, settings.width, near, far))
    return lines


def correlation(network: Network, number: int, settings: Settings) -> tuple[object, ...]:
    """Fit the difference of two mean correlations with different starts, in which c* and its bias
    at finite width cancel."""
    net = network.mean_field
    size = settings.networks // settings.batches
    depth = settings.depth // 2
    q0 = stationary(net)[0]
    # the same weights and masks for both, so that most of the noise cancels too
    seed = (settings.seed, 11, number)
    low, high = (
        measure(net, settings.width, depth, settings.batches, size, seed, (q0, c)) for c in STARTS
    )
    # as if the input were the output, at distance 0
    expected = _expected(network, q0, high.depth)[::-1]
    mean = (high.mean - low.mean)[:, ::-1]
    apart = Batches(mean, np.broadcast_to(size * mean.var(0, ddof=1), mean.shape), size)
    lost = np.flatnonzero((expected < rates.RESOLVED * apart.pooled().of("c_ab")[2])[::-1])
    far = depth - 1
    if len(lost):
        far = int(lost[0]) - 1
    return rates.line(str(network), net, apart, "c_ab", settings.width, SETTLED, far, expected)


def _expected(network: Network, q0: float, depth: int) -> np.ndarray:
    """Return the predicted difference in layers 1 to depth; inputs have no activation."""
    net = network.mean_field
    paths = []
    for c0 in STARTS:
        first = (network.weight_var * c0 * q0 + network.bias_var) / net.q_star
        paths.append(net.trajectory(net.q_star, first, depth - 1).c)
    return paths[1] - paths[0]


def _all(records: Records) -> Frame:
    lines = pd.concat(records.values())
    return lines.assign(quantity=lines.quantity.replace(NAMES))


def judge(records: Records) -> list[Finding]:
    lines = _all(records)
    q_ab = lines[lines.quantity == "q_ab"]
    g_aa = lines[lines.quantity == "g_aa"]
    g_ab = lines[lines.quantity == "g_ab"]
    # the effect of shared weights decays more slowly than the overlap of gradients
    shared = g_ab.limit > g_ab.chi2 * (1 + rates.SETTLED)
    return [
        _finding("q_ab has the depth scale ξ₂", q_ab, "chi2"),
        _finding("g_aa has the depth scale ξ₁", g_aa, "chi1"),
        _finding("g_ab has the depth scale ξ₁ (realistic condition)", g_ab, "chi1"),
        _finding("g_ab has the depth scale ξ₂ (independent weights)", g_ab, "chi2"),
        _finding(
            "The mean of g_ab has the depth scale ξ₂ where χ₂ > λ² (λ is the slope of the length"
            " map)",
            g_ab[~shared],
            "chi2",
            "S1.4",
        ),
        _finding(
            "The mean of g_ab has the scale of λ² where λ² > χ₂: linear networks with σ_w² > ρ²",
            g_ab[shared],
            "limit",
            "S1.5",
        ),
        Finding(
            "Networks can be trained up to min(12 ξ₁, 12 ξ₂) layers",
            None,
            "not measured here; see Figure 7",
        ),
    ]


def _finding(claim: str, lines: Frame, column: str, erratum: str = "") -> Finding:
    holds = rates.all_of(lines, lambda each: rates.agrees(each, column))
    numbers = rates.said(lines, column)
    if erratum:
        return Finding(claim, holds, numbers, "corrected", erratum)
    return Finding(claim, holds, numbers)


def draw(records: Records) -> list[Picture | Grid]:
    lines = _all(records)
    return [_grid(lines), _picture(lines)]


def _scale(rate: float) -> float:
    if rate == 1:
        return float("inf")
    return 1 / abs(np.log(rate))


def _interval(each: Row) -> tuple[float, float]:
    """Return the interval of the depth scale; it has no upper end if a rate of 1 is possible."""
    low, high = sorted((_scale(each.low), _scale(each.high)))
    if each.low <= 1 <= each.high:
        high = float("inf")
    return low, high


def _measured(each: Row) -> str:
    if np.isnan(each.rate):
        return "below the noise"
    low, high = _interval(each)
    return f"{_scale(each.rate):.2f} [{low:.2f}, {high:.2f}]"


def _grid(lines: Frame) -> Grid:
    rows = []
    for each in lines.itertuples():
        predicted = [f"{_scale(rate):.2f}" for rate in (each.chi1, each.chi2, each.limit)]
        printed = PRINTED[each.quantity]
        rows.append((each.network, each.quantity, *printed, *predicted, _measured(each)))
    head = (
        "network",
        "metric",
        "paper: realistic",
        "paper: independent",
        "ξ₁",
        "ξ₂",
        "theory, corrected",
        "measured",
    )
    caption = (
        "Depth scales ξ = 1/|ln rate|, with 99 % intervals. Gradients of one input grow in"
        " hard-tanh networks: χ₁ > 1."
    )
    return Grid("Depth scales", head, rows, caption)


def _picture(lines: Frame) -> Picture:
    """Draw measured scales with their intervals, and xi_1 and xi_2."""
    known = lines[~lines.rate.isna()]
    names: list[str] = []
    scales: list[float] = []
    above: list[float] = []
    below: list[float] = []
    for each in known.itertuples():
        scale = _scale(each.rate)
        low, high = _interval(each)
        names.append(f"{each.network} · {each.quantity}")
        scales.append(scale)
        above.append(high - scale)
        below.append(scale - low)
    bars = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
    data = []
    for colour, column, name, symbol in (
        (SERIES[0], "chi1", "ξ₁", "line-ns-open"),
        (SERIES[3], "chi2", "ξ₂", "line-ns-open"),
        (SERIES[2], "limit", "theory, corrected", "circle-open"),
    ):
        marker = {"symbol": symbol, "size": 14, "line": {"width": 2.5, "color": colour}}
        data.append(
            dots([_scale(rate) for rate in known[column]], names, name, colour, marker=marker)
        )
    data.append(dots(scales, names, "measured", "#888888", error_x=bars))
    axes = layout(
        log("depth scale ξ (layers)", dtick="D2"),
        {"autorange": "reversed", "automargin": True},
        260 + 22 * len(names),
    )
    alt = (
        "Measured depth scales: g_aa lies at ξ₁, q_ab at ξ₂, and g_ab at ξ₂ or somewhat above,"
        " never at ξ₁."
    )
    return Picture("Depth scales: measured, ξ₁ and ξ₂", {"data": data, "layout": axes}, alt)


EXPERIMENT = Experiment(
    name="s1-table1",
    title="Depth scales of correlations and gradients",
    place="Table 1",
    claim=(
        "Correlations of signals have the depth scale ξ₂. Gradients of one input have ξ₁. Gradients"
        " of two inputs have ξ₁ too, not ξ₂ as under the assumption of independent weights."
    ),
    method=(
        "Five kinds of random dropout networks. Signals: the difference of mean correlations with"
        " different starts. Gradients: means over networks (g_ab with its sign), between the"
        " distance at which the predicted rate is within 1 % of its limit and the distance at which"
        " g_ab is below the noise. 99 % intervals by the jackknife over batches of networks."
    ),
    scales={"small": Settings(500, 40, 1600), "paper": Settings(1000, 60, 16000)},
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S1.4", "S1.5"),
)
