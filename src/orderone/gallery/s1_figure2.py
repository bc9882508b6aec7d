"""S1 Figure 2: gradient metrics of linear dropout networks, layer by layer, beside the closed form (12).

    g_aa^l = 4 (q*/rho)^2 chi_1^k [rho + sum_{j=1..k} chi_1^j],    chi_1 = sw2/rho,   k = L - l
    g_ab^l = 4 q_ab*^2    chi_2^k [1 + sum_{j=1..k} (sw2/rho^2)^j],    chi_2 = sw2

The paper averages |g_ab| over networks, sees it leave (12) and fall as chi_1^k, and concludes that theory fails. Erratum
S1.4: (12) is right for the mean with its sign, and chi_1^k is the noise floor of |.|: std(g_ab) ~ N^{-1/2} g_aa. Erratum
S1.5: where sw2 > rho^2, (12) itself falls as chi_1^{2k}, not chi_2^k. Erratum S1.3: (12) needs inputs at the fixed point.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from orderone.gallery import dropout_rates as rates
from orderone.gallery.dropout_batches import Batches, brief, measure, power_of_width
from orderone.gallery.dropout_pictures import KEEP, NEUTRAL, between, dots, layout, line, log, shade, thinned
from orderone.gallery.experiment import Experiment, Finding, Parts, Picture, Records
from orderone.gallery.frames import Frame, Line
from orderone.gallery.judging import known
from orderone.theory import MeanField, linear_gradient_metrics
from orderone.theory.meanfield import linear_noise_level

WEIGHT_VAR, BIAS_VAR = 0.5, 0.1
KEEPS = (1.0, 0.9, 0.7, 0.6)  # the paper's are not printed; (12) needs a rate above weight_var
CURVES = ("g_aa", "g_ab", "abs_g_ab")
SIGMAS = 4.0  # of the mean over networks, for some hundred layers that are not independent
FINITE = 0.05  # (12) is for N -> infinity
LAST_FEW = 2  # distances from the output that count as the last few layers
FAR = 60  # distances at which nothing but the floor is left of |g_ab|, at keep rates below .8
LEAST_KEEP_FAR = 0.8
NOISE_KEEP, NOISE_AT = 0.7, 15  # where the floor is measured, width by width
START_KEEP, FIRST = 0.9, 5  # where inputs that are not at the fixed point show: the first layers


@dataclass(frozen=True)
class Settings:
    width: int
    depth: int
    networks: int
    near_depth: int  # of networks for the mean with its sign, of which many are needed
    near_networks: int
    widths: tuple[int, ...]
    width_networks: int
    batches: int = 8
    seed: int = 0


def parts(settings: Settings) -> Parts:
    all_layers = cache(lambda keep: deep(keep, settings))  # rates come from the same networks
    near = cache(lambda keep: nearby(keep, settings))
    found: dict[str, Any] = {
        f"keep {keep:g}": lambda keep=keep: whole(keep, all_layers(keep), settings) for keep in KEEPS
    }
    found |= {f"keep {keep:g} near": lambda keep=keep: signed(keep, near(keep)) for keep in KEEPS}
    found["rates"] = lambda: pd.DataFrame(
        [each for keep in KEEPS for each in fitted(keep, near(keep), settings)], columns=rates.COLUMNS
    )
    found["far rates"] = lambda: pd.DataFrame(
        [far(keep, all_layers(keep), settings) for keep in KEEPS], columns=rates.COLUMNS
    )
    return found | {"widths": lambda: noise(settings), "start": lambda: started(settings)}


def network(keep: float) -> MeanField:
    return MeanField("linear", weight_var=WEIGHT_VAR, bias_var=BIAS_VAR, keep=keep)


def deep(keep: float, settings: Settings) -> Batches:
    size, seed = settings.networks // settings.batches, (settings.seed, 2, int(100 * keep))
    return measure(network(keep), settings.width, settings.depth, settings.batches, size, seed)


def nearby(keep: float, settings: Settings) -> Batches:
    size, seed = settings.near_networks // settings.batches, (settings.seed, 3, int(100 * keep))
    return measure(network(keep), settings.width, settings.near_depth, settings.batches, size, seed)


def whole(keep: float, batches: Batches, settings: Settings) -> Frame:
    """All layers; every other one suffices except close to the output."""
    level = linear_noise_level(keep, network(keep).c_star)
    frame = _with_theory(keep, batches)
    frame["floor"] = frame.printed_aa if keep == 1 else (2 / np.pi / settings.width) ** 0.5 * level * frame.printed_aa
    frame = brief(frame)
    return frame[(frame.layer % 2 == 1) | (frame.layer > settings.depth - 31)]


def signed(keep: float, batches: Batches) -> Frame:
    return _with_theory(keep, batches)


def _with_theory(keep: float, batches: Batches) -> Frame:
    pooled = batches.pooled()
    g = linear_gradient_metrics(WEIGHT_VAR, BIAS_VAR, keep, batches.depth)
    frame = rates.curve(pooled, CURVES).assign(printed_aa=g.g_aa, printed_ab=g.g_ab)
    return brief(frame.assign(keep=keep, networks=pooled.networks))


def fitted(keep: float, batches: Batches, settings: Settings) -> list[tuple]:
    """The factor a layer of the mean with its sign, as far as it can be seen."""
    far = rates.resolved(network(keep), batches, settings.width)
    return [
        rates.line(f"ρ = {keep:g}", network(keep), batches, quantity, settings.width, LAST_FEW + 1, far)
        for quantity in ("g_aa", "g_ab")
    ]


def far(keep: float, batches: Batches, settings: Settings) -> tuple:
    near = FAR * settings.depth // 200
    return rates.line(f"ρ = {keep:g}", network(keep), batches, "abs_g_ab", settings.width, near, settings.depth - 2)


def noise(settings: Settings) -> Frame:
    """std(g_ab) / g_aa of networks of several widths, in one layer."""
    rows, level = [], linear_noise_level(NOISE_KEEP, network(NOISE_KEEP).c_star)
    for width in settings.widths:
        size = settings.width_networks // settings.batches
        seed = (settings.seed, 4, width)
        batches = measure(network(NOISE_KEEP), width, NOISE_AT + 1, settings.batches, size, seed)
        fit = batches.jackknife(lambda m: float(np.log(m.of("g_ab")[1][0] ** 0.5 / m.of("g_aa")[0][0])))
        rows.append((width, np.exp(fit.exponent), np.exp(fit.low), np.exp(fit.high), level / width**0.5))
    return brief(pd.DataFrame(rows, columns=["width", "noise", "low", "high", "theory"]))


def started(settings: Settings) -> Frame:
    """From unrelated inputs of length one, which is not the fixed point."""
    size, depth, seed = settings.near_networks // settings.batches, 20, (settings.seed, 5)
    batches = measure(network(START_KEEP), settings.width, depth, settings.batches, size, seed, start=(1.0, 0.0))
    mean, _, se = batches.pooled().of("g_aa")
    printed = linear_gradient_metrics(WEIGHT_VAR, BIAS_VAR, START_KEEP, depth).g_aa
    general = linear_gradient_metrics(WEIGHT_VAR, BIAS_VAR, START_KEEP, depth, q0=1.0, qab0=0.0).g_aa
    layers = np.arange(1, depth + 1)
    return brief(pd.DataFrame({"layer": layers, "mean": mean, "se": se, "printed": printed, "general": general}))


def judge(records: Records) -> list[Finding]:
    line = records["rates"]
    dropped = line[(line.quantity == "g_ab") & (line.network != "ρ = 1")]
    return [
        _single(records),
        _without_dropout(records),
        _fails(records),
        _follows(records),
        _last_few(records),
        Finding(
            "(d) with dropout g_ab falls by χ₁ a layer",
            rates.all_of(dropped, lambda each: rates.agrees(each, "chi1")),
            rates.said(dropped, "chi1"),
        ),
        Finding(
            "The mean of g_ab falls as the closed form does",
            rates.all_of(dropped, lambda each: rates.agrees(each, "law")),
            rates.said(dropped, "law", "chi1"),
            "corrected",
            "S1.4",
        ),
        _chi2_always(dropped),
        _chi2_or_chi1_squared(dropped),
        _floor(records),
        *_start(records["start"]),
    ]


def _se(frame: Frame, quantity: str) -> Line:
    return (frame[f"{quantity}_var"] / frame.networks) ** 0.5


def _off(frame: Frame, quantity: str, printed: str) -> Line:
    """Standard errors by which the mean misses theory beyond what finite width may do."""
    missed = (frame[quantity] - frame[printed]).abs() - FINITE * frame[printed].abs()
    return missed.clip(lower=0) / _se(frame, quantity)


def _single(records: Records) -> Finding:
    curves = [records[f"keep {keep:g}"] for keep in KEEPS]
    worst = [float(_off(curve, "g_aa", "printed_aa").max()) for curve in curves]
    size = [np.abs(np.log(curve.g_aa / curve.printed_aa)).median() for curve in curves]
    decades = max(np.ptp(np.log10(curve.g_aa)) for curve in curves)
    numbers = f"over {decades:.0f} decades; median deviation {_each(size, '{:.1%}')}; at most {_each(worst, '{:.1f}')} "
    numbers += f"standard errors beyond {FINITE:.0%}"
    return Finding("(a) the closed form (12) predicts g_aa in every layer", _within(worst), numbers)


def _within(worst: list[float]) -> bool | None:
    return max(worst) < SIGMAS if known(worst) else None


def _each(values: list[float], form: str) -> str:
    return ", ".join(f"{form.format(v)} (ρ = {keep:g})" for keep, v in zip(KEEPS, values, strict=True))


def _without_dropout(records: Records) -> Finding:
    curve = records["keep 1"]
    worst = float(_off(curve, "abs_g_ab", "printed_ab").max())
    numbers = f"at most {worst:.1f} standard errors beyond {FINITE:.0%} in {len(curve)} layers"
    return Finding("(b) without dropout (12) predicts g_ab", _within([worst]), numbers)


def _seen(records: Records) -> dict[float, Frame]:
    """Layers beyond the last few in which the mean with its sign can be told from 0, for rates below 1."""
    seen = {}
    for keep in KEEPS[1:]:
        curve = records[f"keep {keep:g} near"]
        distance = curve.layer.max() - curve.layer
        # by theory's mean, so that no layer is chosen for its noise
        seen[keep] = curve[(distance > LAST_FEW) & (curve.printed_ab > rates.RESOLVED * _se(curve, "g_ab"))]
    return seen


def _fails(records: Records) -> Finding:
    seen = _seen(records)
    missed = [_off(curve, "g_ab", "printed_ab") for curve in seen.values() if len(curve)]
    off = [bool((each > SIGMAS).any()) for each in missed if known(each)]
    claim = "(b) with dropout the closed form fails for g_ab beyond the last few layers"
    return Finding(claim, all(off) if off else None, _ratios(seen))


def _follows(records: Records) -> Finding:
    seen = _seen(records)
    missed = [_off(curve, "g_ab", "printed_ab") for curve in seen.values()]
    on = [not (each > SIGMAS).any() for each in missed]
    told = all(len(each) >= rates.FEWEST and known(each) for each in missed)
    claim = "The closed form predicts the mean of g_ab with its sign, as far as it can be told from 0"
    return Finding(claim, (all(on) if told else None) if all(on) else False, _ratios(seen), "corrected", "S1.4")


def _ratios(seen: dict[float, Frame]) -> str:
    """Of the farthest layer seen: the mean with its sign, and of absolute values, over (12)."""
    said = []
    for keep, curve in seen.items():
        if len(curve):
            first, k = curve.iloc[0], int(curve.layer.max() - curve.layer.min() + LAST_FEW + 1)
            se = _se(curve, "g_ab").iloc[0] / first.printed_ab
            ratio, folded = first.g_ab / first.printed_ab, first.abs_g_ab / first.printed_ab
            said.append(f"ρ = {keep:g}, L−l = {k}: mean/(12) = {ratio:.2f} ± {se:.2f}, mean of |.|/(12) = {folded:.2f}")
    return "; ".join(said) or "no layer can be told from 0"


def _last_few(records: Records) -> Finding:
    few = [curve[curve.layer.max() - curve.layer <= LAST_FEW] for curve in (records[f"keep {k:g}"] for k in KEEPS[1:])]
    worst = [float(_off(curve, "abs_g_ab", "printed_ab").max()) for curve in few]
    numbers = f"L−l = 0…{LAST_FEW}: at most {max(worst):.1f} standard errors beyond {FINITE:.0%}"
    return Finding("(c) the closed form predicts the mean of |g_ab| in the last few layers", _within(worst), numbers)


def _chi2_always(lines: Frame) -> Finding:
    claim = "Under the independence assumption g_ab falls by χ₂ a layer, whatever ρ (9)"
    holds = rates.all_of(lines, lambda each: rates.agrees(each, "chi2"))
    return Finding(claim, holds, rates.said(lines, "chi2"))


def _chi2_or_chi1_squared(lines: Frame) -> Finding:
    """The rate far from the output is the larger of chi_2 and chi_1^2; a finite window sees it within its own curve."""

    def told(each: Line) -> bool | None:
        larger = max(each.chi2, each.chi1**2)
        beyond = each.chi1**2 > each.chi2
        slower = each.low > each.chi2 * (1 + rates.FINITE / each.width)
        right = slower if beyond else rates.agrees(each, "chi2") is not False
        nearer = abs(np.log(each.rate / larger)) <= abs(np.log(each.rate / each.chi1))
        return None if np.isnan(each.rate) else bool(right and nearer)

    claim = "g_ab falls by χ₂ a layer only if σ_w² < ρ², and more slowly, towards χ₁², otherwise"
    numbers = "; ".join(
        f"{e.network}: {rates.measured(e)}, χ₂ {e.chi2:.4f}, χ₁² {e.chi1**2:.4f}" for _, e in lines.iterrows()
    )
    return Finding(claim, rates.all_of(lines, told), numbers, "corrected", "S1.5")


def _floor(records: Records) -> Finding:
    """|g_ab| falls by chi_1 where its mean is long lost, and the noise falls as the root of the width."""
    lines, widths = records["far rates"], records["widths"]
    lines = lines[[float(name[4:]) < LEAST_KEEP_FAR for name in lines.network]]
    slope = rates.all_of(lines, lambda each: rates.agrees(each, "chi1"))
    power = power_of_width(widths.width, widths.noise, widths.low, widths.high)
    root = power.low - FINITE <= -0.5 <= power.high + FINITE
    widest = widths.iloc[-1]
    level = widest.low * (1 - FINITE) <= widest.theory <= widest.high * (1 + FINITE)
    scale = widest.width**0.5
    numbers = (
        f"std(g_ab)/g_aa ~ N^({power}) at L−l = {NOISE_AT}, ρ = {NOISE_KEEP:g}; √N std/g_aa = {scale * widest.noise:.3f} "
        f"[{scale * widest.low:.3f}, {scale * widest.high:.3f}], c* ρ/√(1−ρ²) = {scale * widest.theory:.3f}; "
    )
    claim = "What falls by χ₁ is the noise of |g_ab|, a floor of relative size N^(-1/2)"
    holds = None if not known([power.low, widest.low, widest.high]) else slope if root and level else False
    return Finding(claim, holds, numbers + rates.said(lines, "chi1"), "corrected", "S1.4")


def _start(frame: Frame) -> list[Finding]:
    first = frame[frame.layer <= FIRST]
    missed = {name: (first["mean"] - first[name]).abs() - FINITE * first[name] for name in ("printed", "general")}
    numbers = "; ".join(
        f"l = {int(e.layer)}: measured/(12) = {e['mean'] / e.printed:.2f} ± {e.se / e.printed:.2f}, "
        f"measured/general = {e['mean'] / e.general:.2f} ± {e.se / e.general:.2f}"
        for _, e in first.iterrows()
    )
    holds = {name: bool((b < SIGMAS * first.se).all()) if known(b, first.se) else None for name, b in missed.items()}
    claim = "(12) predicts g_aa whatever the length of the input"
    corrected = "With the lengths of every layer in place of q*, it does"
    return [
        Finding(claim, holds["printed"], numbers),
        Finding(corrected, holds["general"], numbers, "corrected", "S1.3"),
    ]


def draw(records: Records) -> list[Picture]:
    curves = {keep: records[f"keep {keep:g}"] for keep in KEEPS}
    near = {keep: records[f"keep {keep:g} near"] for keep in KEEPS}
    return [_a(curves), _b(curves), _c(curves), _d(curves), _ratio(near), _noise(records["widths"])]


def _name(keep: float) -> str:
    return f"ρ = {keep:g}"


def _pairs(curves: dict[float, Frame], quantity: str, printed: str, every: int) -> list[dict]:
    """Theory solid, networks dashed with dots."""
    data = []
    for keep, curve in curves.items():
        colour, group = KEEP[keep], {"legendgroup": _name(keep)}
        data.append(line(curve.layer, curve[printed], _name(keep), colour, **group))
        some = thinned(curve.reset_index(drop=True), every)
        group, words = group | {"showlegend": False}, f"{_name(keep)}, networks"
        data.append(line(curve.layer, curve[quantity], words, colour, "dash", **group))
        data.append(dots(some.layer, some[quantity], words, colour, **group))
    return data


def _layers(y: str) -> dict[str, Any]:
    return layout("layer l", log(y))


CAPTION = "Solid: theory. Dashed with dots: means over networks. ρ is the keep rate."


def _a(curves: dict[float, Frame]) -> Picture:
    figure = {"data": _pairs(curves, "g_aa", "printed_aa", 8), "layout": _layers("g<sub>aa</sub>")}
    decades = max(np.ptp(np.log10(curve.g_aa)) for curve in curves.values())
    alt = f"g_aa against the layer for {len(curves)} keep rates: networks lie on theory over {decades:.0f} decades."
    return Picture("(a) One input: g_aa and the closed form", figure, alt, CAPTION)


def _b(curves: dict[float, Frame]) -> Picture:
    figure = {"data": _pairs(curves, "abs_g_ab", "printed_ab", 8), "layout": _layers("mean of |g<sub>ab</sub>|")}
    least = min(curves)
    gap = np.log10(curves[least].abs_g_ab.iloc[0] / curves[least].printed_ab.iloc[0])
    alt = f"With dropout the mean of |g_ab| leaves the closed form, by {gap:.0f} decades in layer 1 at ρ = {least:g}."
    return Picture("(b) Two inputs: |g_ab| and the closed form", figure, alt, CAPTION)


def _c(curves: dict[float, Frame]) -> Picture:
    last = {keep: curve[curve.layer > curve.layer.max() - 31] for keep, curve in curves.items()}
    data = _pairs(last, "abs_g_ab", "printed_ab", 1)
    for keep, curve in last.items():
        std = curve.abs_g_ab_var**0.5
        low = (curve.abs_g_ab - std).clip(lower=curve.abs_g_ab / 10)  # a logarithmic axis has no zero
        data.append(shade(curve.layer, low, curve.abs_g_ab + std, _name(keep), KEEP[keep], legendgroup=_name(keep)))
    alt = "The last 31 layers: |g_ab| starts on the closed form and leaves it where its spread over networks becomes large."
    caption = CAPTION + " Shades: one standard deviation over networks, cut off at a tenth of the mean."
    figure = {"data": data, "layout": _layers("mean of |g<sub>ab</sub>|")}
    return Picture("(c) The last layers", figure, alt, caption)


def _d(curves: dict[float, Frame]) -> Picture:
    figure = {"data": _pairs(curves, "abs_g_ab", "floor", 8), "layout": _layers("mean of |g<sub>ab</sub>|")}
    alt = "Lines that fall by χ₁ a layer, at the height of the noise floor, run through |g_ab| far from the output."
    caption = (
        "Solid: ∝ χ₁^(L−l), at the height that theory gives the noise, (2/π)^(1/2) c* ρ (1−ρ²)^(-1/2) N^(-1/2) g_aa; "
        "nothing is fitted. Without dropout, which has no such floor: g_aa. Dashed with dots: networks."
    )
    return Picture("(d) |g_ab| and χ₁^(L−l)", figure, alt, caption)


def _ratio(near: dict[float, Frame]) -> Picture:
    """What the paper did not plot: the mean with its sign over the closed form, as far as it is above the noise."""
    data = [line([0, max(curve.layer.max() for curve in near.values())], [1, 1], "theory (12)", NEUTRAL, "dash")]
    for keep, curve in near.items():
        curve = curve.assign(k=curve.layer.max() - curve.layer)
        curve = curve[curve.printed_ab > 2 * _se(curve, "g_ab")]
        colour, group = KEEP[keep], {"legendgroup": _name(keep)}
        ratio, se = curve.g_ab / curve.printed_ab, _se(curve, "g_ab") / curve.printed_ab
        data.append(dots(curve.k, ratio, f"{_name(keep)}, with sign", colour, se, **group))
        data.append(line(curve.k, curve.abs_g_ab / curve.printed_ab, f"{_name(keep)}, |.|", colour, "dash", **group))
    figure = {"data": data, "layout": layout("distance from the output L − l", "mean / closed form", 520)}
    figure["layout"]["yaxis"]["range"] = [-0.5, 5]
    alt = (
        "Means of g_ab with their sign stay on the closed form within their error bars; means of |g_ab| rise above it."
    )
    return Picture("(e) The mean with its sign over the closed form", figure, alt, "Not in the paper: erratum S1.4.")


def _noise(widths: Frame) -> Picture:
    bars = between(widths.noise, widths.low, widths.high)
    data = [
        line(widths.width, widths.theory, "c* ρ (1−ρ²)<sup>−1/2</sup> N<sup>−1/2</sup>", NEUTRAL, "dash"),
        dots(widths.width, widths.noise, "networks", KEEP[NOISE_KEEP], error_y=bars),
    ]
    figure = {
        "data": data,
        "layout": layout(
            log("width N", tickvals=widths.width.tolist()), log("std(g<sub>ab</sub>) / g<sub>aa</sub>", dtick="D2")
        ),
    }
    first, last = widths.noise.iloc[0], widths.noise.iloc[-1]
    alt = f"The noise of g_ab falls from {first:.3f} to {last:.3f}, as the inverse root of the width."
    return Picture("(f) The noise floor against the width", figure, alt, "Not in the paper: erratum S1.4.")


EXPERIMENT = Experiment(
    name="s1-figure2",
    title="Gradient metrics of linear networks",
    claim="A closed form predicts the gradients of one input; of two inputs it fails with dropout, where g_ab falls by χ₁ "
    "a layer.",
    method="Random linear dropout networks with σ_w² = .5, σ_b² = .1 and inputs at the fixed point, forward and backward "
    "weights shared; the mean of g_ab with its sign is taken over many more networks than the mean of |g_ab|. Intervals: "
    "99 %, by leaving out batches of networks. The caption has width 1000, the text 500 (erratum S1.8).",
    scales={
        "small": Settings(500, 200, 96, 46, 1600, (64, 128, 256, 512, 1024), 1600),
        "paper": Settings(1000, 200, 104, 60, 16000, (64, 128, 256, 512, 1024), 16000),
    },
    parts=parts,
    judge=judge,
    draw=draw,
    errata=("S1.3", "S1.4", "S1.5", "S1.8"),
)  # fmt: skip
