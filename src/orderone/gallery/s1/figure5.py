"""S1 Figure 5: variance against mean of g_aa, |g_ab| and the l1 norm, for tanh networks of several
widths.

In the paper all widths are on one line. Erratum S1.9: V/m^2 of g_aa falls as 1/N in every layer,
and so does V/m^2 of the l1 norm. On its noise floor, |g_ab| is that norm times the absolute value
of a normal variable, so that

    1 + V/m^2 of |g_ab| = (pi/2) (1 + V/m^2 of the l1 norm),

which tends to pi/2 - 1 for wide networks, and not to 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.figures import Figure
from orderone.gallery.frames import Frame
from orderone.gallery.judge import known, where_known
from orderone.gallery.s1 import variance_laws as laws
from orderone.gallery.s1.dropout_batches import Batches, brief, measure, power_of_width
from orderone.gallery.s1.dropout_pictures import NEUTRAL, SERIES, between, dots, layout, line, log
from orderone.measure import Fit
from orderone.theory import MeanField

ACTIVATION = "tanh"
WEIGHT_VAR = 1.4
BIAS_VAR = 0.1
KEEP_RATE = 0.9  # as in the paper; the variances are those of Figure 3
# distances from the output at which V/m^2 is compared between widths; there it is well below 1
WINDOW = (2, 8)
FLOOR = (15, 25)  # the same for |g_ab| on its noise floor
NOISE = ("abs_g_ab", "l1_g_ab")
# tolerance of a power of the width: V/m^2 is expm1(k/N), not k/N, which is some tenths at small N
FINITE = 0.1


@dataclass(frozen=True)
class Settings:
    widths: tuple[int, ...]
    depth: int
    networks: int
    batches: int = 16
    seed: int = 0


def parts(settings: Settings) -> Parts:
    simulated = cache(lambda width: simulate(width, settings))
    measured: dict[str, Callable[[], Frame]] = {}
    for width in settings.widths:
        measured[f"width {width}"] = lambda w=width: laws.curves(simulated(w))
    measured["laws"] = lambda: fitted(settings, simulated)
    measured["ratios"] = lambda: ratios(settings, simulated)
    return measured


def simulate(width: int, settings: Settings) -> Batches:
    network = MeanField(ACTIVATION, weight_var=WEIGHT_VAR, bias_var=BIAS_VAR, keep=KEEP_RATE)
    size = settings.networks // settings.batches
    return measure(
        network, width, settings.depth, settings.batches, size, (settings.seed, 9, width)
    )


def fitted(settings: Settings, simulated: Callable[[int], Batches]) -> Frame:
    rows = []
    for width in settings.widths:
        for row in laws.laws(simulated(width)):
            rows.append((width, *row))
    return brief(pd.DataFrame(rows, columns=["width", *laws.COLUMNS]))


def ratios(settings: Settings, simulated: Callable[[int], Batches]) -> Frame:
    """Return V/m^2 of every width over the same layers, with its interval."""
    windows = [(quantity, *WINDOW) for quantity in laws.QUANTITIES]
    windows += [(quantity, *FLOOR) for quantity in NOISE]
    rows = []
    for quantity, near, far in windows:
        for width in settings.widths:
            fit = simulated(width).jackknife(
                lambda m, q=quantity, n=near, f=far: laws.log_ratio(m, q, n, f)
            )
            rows.append((quantity, near, far, width, *np.exp((fit.exponent, fit.low, fit.high))))
    return brief(
        pd.DataFrame(rows, columns=["quantity", "near", "far", "width", "ratio", "low", "high"])
    )


def falls(lines: Frame) -> Fit:
    """Return the power of the width in V/m^2."""
    return power_of_width(lines.width, lines.ratio, lines.low, lines.high)


def judge(records: Records) -> list[Finding]:
    ratio = records["ratios"]
    findings: list[Finding] = []
    for quantity, words in laws.WORDS.items():
        lines = _at(ratio, quantity, WINDOW)
        fit = falls(lines)
        numbers = f"V/m² ~ N^({fit}) over L−l = {WINDOW[0]}…{WINDOW[1]}: {_levels(lines)}"
        collapse = f"Curves of {words} collapse for all widths"
        findings.append(Finding(collapse, _has_power(fit, 0), numbers))
        if quantity != "abs_g_ab":
            inverse = f"V/m² of {words} falls as 1/N"
            findings.append(Finding(inverse, _has_power(fit, -1), numbers, "corrected", "S1.9"))
    return [*findings, _floor(ratio), _two(records["laws"])]


def _has_power(fit: Fit, power: int) -> bool | None:
    """Return whether the interval of the fit contains the power; None if it is not known."""
    if not known([fit.low, fit.high]):
        return None
    return bool(fit.low - FINITE <= power <= fit.high + FINITE)


def _at(ratio: Frame, quantity: str, window: tuple[int, int]) -> Frame:
    return ratio[(ratio.quantity == quantity) & (ratio.near == window[0])]


def _levels(lines: Frame) -> str:
    return ", ".join(
        f"{e.ratio:.3g} [{e.low:.3g}, {e.high:.3g}] at N = {e.width}" for e in lines.itertuples()
    )


def _floor(ratio: Frame) -> Finding:
    """Judge V/m^2 of |g_ab| far from the output, where its mean is below the noise."""
    folded = _at(ratio, "abs_g_ab", FLOOR).set_index("width")
    norm = _at(ratio, "l1_g_ab", FLOOR).set_index("width")
    expected = np.pi / 2 * (1 + norm.ratio) - 1
    room = FINITE * (1 + expected)
    right = (folded.low - room <= expected) & (expected <= folded.high + room)
    claim = (
        "On its noise floor, |g_ab| is the l1 norm times a half-normal variable: V/m² tends to π/2"
        " − 1 for wide networks"
    )
    ratios_by_width = ", ".join(
        f"{w}: {e.ratio:.2f} [{e.low:.2f}, {e.high:.2f}], expected {expected[w]:.2f}"
        for w, e in folded.iterrows()
    )
    numbers = f"V/m² of |g_ab| over L−l = {FLOOR[0]}…{FLOOR[1]} at N = {ratios_by_width}"
    holds = where_known(right.all(), expected, folded.low, folded.high)
    return Finding(claim, holds, numbers, "corrected", "S1.9")


def _two(lines: Frame) -> Finding:
    numbers = "; ".join(
        f"N = {e.width} {laws.WORDS[e.quantity]}: {laws.power(e)}" for e in lines.itertuples()
    )
    return Finding("At every width the power is 2", laws.is_two(lines), numbers)


def draw(records: Records) -> list[Picture]:
    pictures: list[Picture] = []
    for letter, quantity in zip("abc", laws.QUANTITIES, strict=True):
        pictures.append(_picture(letter, quantity, records))
    return [*pictures, _ratios(records["ratios"])]


def _picture(letter: str, quantity: str, records: Records) -> Picture:
    widths = sorted(int(part.split()[1]) for part in records if part.startswith("width "))
    series = {}
    for width, colour in zip(widths, SERIES, strict=False):
        series[f"N = {width}"] = (records[f"width {width}"], {"color": colour})
    lines = _at(records["ratios"], quantity, WINDOW)
    first = lines.iloc[0]
    last = lines.iloc[-1]
    alt = (
        f"Variance against mean of {laws.WORDS[quantity]} for {len(widths)} widths, close to lines"
        f" of slope 2; near the output V/m² is {first.ratio:.2g} at N = {first.width:g} and"
        f" {last.ratio:.2g} at N = {last.width:g}."
    )
    caption = (
        f"One dot per layer. tanh, ρ = {KEEP_RATE:g}, σ_w² = {WEIGHT_VAR:g}, σ_b² ="
        f" {BIAS_VAR:g}. Line: slope 2."
    )
    return laws.picture(f"({letter}) {laws.WORDS[quantity]}", quantity, series, alt, caption)


def _ratios(ratio: Frame) -> Picture:
    data = []
    names = [(quantity, WINDOW) for quantity in laws.QUANTITIES] + [("abs_g_ab", FLOOR)]
    for colour, (quantity, window) in zip(SERIES, names, strict=False):
        lines = _at(ratio, quantity, window)
        bars = between(lines.ratio, lines.low, lines.high)
        name = f"{laws.QUANTITIES[quantity]}, L−l = {window[0]}…{window[1]}"
        data.append(
            dots(lines.width, lines.ratio, name, colour, error_y=bars, mode="lines+markers")
        )
    first = _at(ratio, "g_aa", WINDOW)
    data.append(
        line(
            first.width,
            first.ratio.iloc[0] * first.width.iloc[0] / first.width,
            "∝ 1/N",
            NEUTRAL,
            "dash",
        )
    )
    x = log("width N", tickvals=sorted(set(ratio.width.tolist())))
    ends = first.ratio.iloc[0], first.ratio.iloc[-1]
    alt = f"V/m² against the width: for g_aa it falls from {ends[0]:.2g} to {ends[1]:.2g}, as 1/N."
    figure: Figure = {"data": data, "layout": layout(x, log("V / m²", dtick="D2"), 500)}
    return Picture("(d) V/m² against the width", figure, alt, "Not in the paper: erratum S1.9.")


EXPERIMENT = Experiment(
    name="s1-figure5",
    title="Variance against mean: widths",
    place="Figure 5",
    claim=(
        "The variance over networks of each gradient metric is proportional to the square of its"
        " mean, on one line for all widths."
    ),
    method=(
        "Random tanh networks with dropout and signals at the fixed point; mean and variance over"
        " networks in every layer. V/m² is compared between widths over the same layers, with 99 %"
        " intervals by the jackknife over batches of networks."
    ),
    scales={
        "small": Settings(widths=(100, 200, 400, 800), depth=100, networks=320),
        "paper": Settings(widths=(100, 200, 400, 800), depth=200, networks=1600),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S1.9",),
)
