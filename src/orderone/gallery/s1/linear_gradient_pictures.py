"""Figures of the records of `linear_gradients`: the four panels of S1 Figure 2, and two for erratum
S1.4."""

import numpy as np

from orderone.gallery.experiment import Picture, Records
from orderone.gallery.figures import Figure, Layout, Trace
from orderone.gallery.frames import Frame
from orderone.gallery.s1.dropout_pictures import (
    KEEP,
    NEUTRAL,
    between,
    dots,
    layout,
    line,
    log,
    shade,
    thinned,
)
from orderone.gallery.s1.linear_gradients import KEEPS, NOISE_KEEP, standard_error


def draw(records: Records) -> list[Picture]:
    curves = {keep: records[f"keep {keep:g}"] for keep in KEEPS}
    near = {keep: records[f"keep {keep:g} near"] for keep in KEEPS}
    return [_a(curves), _b(curves), _c(curves), _d(curves), _ratio(near), _noise(records["widths"])]


def _name(keep: float) -> str:
    return f"ρ = {keep:g}"


def _pairs(curves: dict[float, Frame], quantity: str, printed: str, every: int) -> list[Trace]:
    """Draw theory as solid lines and networks as dashed lines with dots."""
    data = []
    for keep, curve in curves.items():
        colour = KEEP[keep]
        group: Trace = {"legendgroup": _name(keep)}
        data.append(line(curve.layer, curve[printed], _name(keep), colour, **group))
        some = thinned(curve.reset_index(drop=True), every)
        group = group | {"showlegend": False}
        words = f"{_name(keep)}, networks"
        data.append(line(curve.layer, curve[quantity], words, colour, "dash", **group))
        data.append(dots(some.layer, some[quantity], words, colour, **group))
    return data


def _layers(y: str) -> Layout:
    return layout("layer l", log(y))


CAPTION = "Solid: theory. Dashed with dots: means over networks. ρ is the keep rate."


def _a(curves: dict[float, Frame]) -> Picture:
    figure: Figure = {
        "data": _pairs(curves, "g_aa", "printed_aa", 8),
        "layout": _layers("g<sub>aa</sub>"),
    }
    decades = max(np.ptp(np.log10(curve.g_aa)) for curve in curves.values())
    alt = (
        f"g_aa against the layer for {len(curves)} keep rates: networks lie on theory over"
        f" {decades:.0f} decades."
    )
    return Picture("(a) One input: g_aa and the closed form", figure, alt, CAPTION)


def _b(curves: dict[float, Frame]) -> Picture:
    figure: Figure = {
        "data": _pairs(curves, "abs_g_ab", "printed_ab", 8),
        "layout": _layers("mean of |g<sub>ab</sub>|"),
    }
    least = min(curves)
    gap = np.log10(curves[least].abs_g_ab.iloc[0] / curves[least].printed_ab.iloc[0])
    alt = (
        f"With dropout the mean of |g_ab| differs from the closed form, by {gap:.0f} decades in"
        f" layer 1 at ρ = {least:g}."
    )
    return Picture("(b) Two inputs: |g_ab| and the closed form", figure, alt, CAPTION)


def _c(curves: dict[float, Frame]) -> Picture:
    last = {keep: curve[curve.layer > curve.layer.max() - 31] for keep, curve in curves.items()}
    data = _pairs(last, "abs_g_ab", "printed_ab", 1)
    for keep, curve in last.items():
        std = curve.abs_g_ab_var**0.5
        low = (curve.abs_g_ab - std).clip(
            lower=curve.abs_g_ab / 10
        )  # a logarithmic axis has no zero
        data.append(
            shade(
                curve.layer,
                low,
                curve.abs_g_ab + std,
                _name(keep),
                KEEP[keep],
                legendgroup=_name(keep),
            )
        )
    alt = (
        "The last 31 layers: |g_ab| equals the closed form near the output and departs from it"
        " where its spread over networks is large."
    )
    caption = (
        CAPTION + " Shades: one standard deviation over networks, cut off at a tenth of the mean."
    )
    figure: Figure = {"data": data, "layout": _layers("mean of |g<sub>ab</sub>|")}
    return Picture("(c) The last layers", figure, alt, caption)


def _d(curves: dict[float, Frame]) -> Picture:
    figure: Figure = {
        "data": _pairs(curves, "abs_g_ab", "floor", 8),
        "layout": _layers("mean of |g<sub>ab</sub>|"),
    }
    alt = (
        "Far from the output, |g_ab| lies on lines that fall by χ₁ per layer, at the height of the"
        " noise floor."
    )
    caption = (
        "Solid: ∝ χ₁^(L−l), at the predicted height of the noise, (2/π)^(1/2) c* ρ"
        " (1−ρ²)^(-1/2) N^(-1/2) g_aa; nothing is fitted. Without dropout there is no such floor:"
        " g_aa. Dashed with dots: networks."
    )
    return Picture("(d) |g_ab| and χ₁^(L−l)", figure, alt, caption)


def _ratio(near: dict[float, Frame]) -> Picture:
    """Draw the mean with its sign over the closed form, as far as it is above the noise; not in the
    paper."""
    farthest = max(curve.layer.max() for curve in near.values())
    data = [line([0, farthest], [1, 1], "theory (12)", NEUTRAL, "dash")]
    for keep, curve in near.items():
        data += _ratio_traces(keep, curve)
    figure: Figure = {
        "data": data,
        "layout": layout("distance from the output L − l", "mean / closed form", 520),
    }
    figure["layout"]["yaxis"]["range"] = [-0.5, 5]
    alt = (
        "Means of g_ab with their sign equal the closed form within their error bars; means of"
        " |g_ab| rise above it."
    )
    return Picture(
        "(e) The mean with its sign over the closed form",
        figure,
        alt,
        "Not in the paper: erratum S1.4.",
    )


def _ratio_traces(keep: float, curve: Frame) -> list[Trace]:
    """Draw the means of g_ab with sign and of |g_ab|, over the closed form."""
    curve = curve.assign(k=curve.layer.max() - curve.layer)
    curve = curve[curve.printed_ab > 2 * standard_error(curve, "g_ab")]
    colour = KEEP[keep]
    group: Trace = {"legendgroup": _name(keep)}
    ratio = curve.g_ab / curve.printed_ab
    se = standard_error(curve, "g_ab") / curve.printed_ab
    size = curve.abs_g_ab / curve.printed_ab
    return [
        dots(curve.k, ratio, f"{_name(keep)}, with sign", colour, se, **group),
        line(curve.k, size, f"{_name(keep)}, |.|", colour, "dash", **group),
    ]


def _noise(widths: Frame) -> Picture:
    bars = between(widths.noise, widths.low, widths.high)
    data = [
        line(
            widths.width,
            widths.theory,
            "c* ρ (1−ρ²)<sup>−1/2</sup> N<sup>−1/2</sup>",
            NEUTRAL,
            "dash",
        ),
        dots(widths.width, widths.noise, "networks", KEEP[NOISE_KEEP], error_y=bars),
    ]
    figure: Figure = {
        "data": data,
        "layout": layout(
            log("width N", tickvals=widths.width.tolist()),
            log("std(g<sub>ab</sub>) / g<sub>aa</sub>", dtick="D2"),
        ),
    }
    first = widths.noise.iloc[0]
    last = widths.noise.iloc[-1]
    alt = (
        f"The noise of g_ab falls from {first:.3f} to {last:.3f}, as the inverse root of the width."
    )
    return Picture(
        "(f) The noise floor against the width", figure, alt, "Not in the paper: erratum S1.4."
    )
