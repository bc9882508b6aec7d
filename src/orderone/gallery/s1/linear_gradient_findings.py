"""Findings about S1 Figure 2 and errata S1.3, S1.4 and S1.5 from the records of
`linear_gradients`."""

import numpy as np

from orderone.gallery.experiment import Finding, Records
from orderone.gallery.frames import Frame, Line
from orderone.gallery.judge import known, where_known
from orderone.gallery.s1 import dropout_rates as rates
from orderone.gallery.s1.dropout_batches import power_of_width
from orderone.gallery.s1.linear_gradients import (
    KEEPS,
    LAST_FEW,
    NOISE_AT,
    NOISE_KEEP,
    standard_error,
)

SIGMAS = 4.0  # of the mean over networks, for some hundred layers that are not independent
FINITE = 0.05  # (12) is for N -> infinity
LEAST_KEEP_FAR = 0.8
FIRST = 5  # first layers, in which inputs that are not at the fixed point matter


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
            "(d) with dropout g_ab falls by χ₁ per layer",
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


def _off(frame: Frame, quantity: str, printed: str) -> Line:
    """Return by how many standard errors the mean misses theory, beyond a tolerance for finite
    width."""
    missed = (frame[quantity] - frame[printed]).abs() - FINITE * frame[printed].abs()
    return missed.clip(lower=0) / standard_error(frame, quantity)


def _single(records: Records) -> Finding:
    worst = []
    size = []
    decades = 0.0
    for keep in KEEPS:
        curve = records[f"keep {keep:g}"]
        worst.append(float(_off(curve, "g_aa", "printed_aa").max()))
        size.append(np.abs(np.log(curve.g_aa / curve.printed_aa)).median())
        decades = max(decades, np.ptp(np.log10(curve.g_aa)))
    numbers = (
        f"over {decades:.0f} decades; median deviation {_each(size, '{:.1%}')}; at most"
        f" {_each(worst, '{:.1f}')} "
    )
    numbers += f"standard errors beyond {FINITE:.0%}"
    return Finding("(a) the closed form (12) predicts g_aa in every layer", _within(worst), numbers)


def _within(worst: list[float]) -> bool | None:
    return where_known(max(worst) < SIGMAS, worst)


def _each(values: list[float], form: str) -> str:
    return ", ".join(
        f"{form.format(v)} (ρ = {keep:g})" for keep, v in zip(KEEPS, values, strict=True)
    )


def _without_dropout(records: Records) -> Finding:
    curve = records["keep 1"]
    worst = float(_off(curve, "abs_g_ab", "printed_ab").max())
    numbers = f"at most {worst:.1f} standard errors beyond {FINITE:.0%} in {len(curve)} layers"
    return Finding("(b) without dropout (12) predicts g_ab", _within([worst]), numbers)


def _resolved(records: Records) -> dict[float, Frame]:
    """Return the layers, without the last few, in which the mean with its sign differs from 0, for
    keep rates below 1."""
    resolved = {}
    for keep in KEEPS[1:]:
        curve = records[f"keep {keep:g} near"]
        distance = curve.layer.max() - curve.layer
        # by the predicted mean, so that noise does not select layers
        resolved[keep] = curve[
            (distance > LAST_FEW)
            & (curve.printed_ab > rates.RESOLVED * standard_error(curve, "g_ab"))
        ]
    return resolved


def _fails(records: Records) -> Finding:
    resolved = _resolved(records)
    missed = [_off(curve, "g_ab", "printed_ab") for curve in resolved.values() if len(curve)]
    off = [bool((each > SIGMAS).any()) for each in missed if known(each)]
    claim = "(b) with dropout the closed form fails for g_ab beyond the last few layers"
    return Finding(claim, all(off) if off else None, _ratios(resolved))


def _follows(records: Records) -> Finding:
    resolved = _resolved(records)
    missed = [_off(curve, "g_ab", "printed_ab") for curve in resolved.values()]
    follows = True
    decided = True
    for off in missed:
        follows = follows and not (off > SIGMAS).any()
        decided = decided and len(off) >= rates.FEWEST and known(off)
    holds: bool | None = follows
    if follows and not decided:
        holds = None
    claim = "The closed form predicts the mean of g_ab with its sign, where it differs from 0"
    return Finding(claim, holds, _ratios(resolved), "corrected", "S1.4")


def _ratios(resolved: dict[float, Frame]) -> str:
    """Return, for the farthest layer, the mean with its sign and the mean of absolute values, over
    (12)."""
    ratios = []
    for keep, curve in resolved.items():
        if len(curve):
            first = curve.iloc[0]
            k = int(curve.layer.max() - curve.layer.min() + LAST_FEW + 1)
            se = standard_error(curve, "g_ab").iloc[0] / first.printed_ab
            ratio = first.g_ab / first.printed_ab
            folded = first.abs_g_ab / first.printed_ab
            ratios.append(
                f"ρ = {keep:g}, L−l = {k}: mean/(12) = {ratio:.2f} ± {se:.2f}, mean of |.|/(12) ="
                f" {folded:.2f}"
            )
    return "; ".join(ratios) or "no layer differs from 0"


def _last_few(records: Records) -> Finding:
    worst = []
    for keep in KEEPS[1:]:
        curve: Frame = records[f"keep {keep:g}"]
        few = curve[curve.layer.max() - curve.layer <= LAST_FEW]
        worst.append(float(_off(few, "abs_g_ab", "printed_ab").max()))
    numbers = f"L−l = 0…{LAST_FEW}: at most {max(worst):.1f} standard errors beyond {FINITE:.0%}"
    return Finding(
        "(c) the closed form predicts the mean of |g_ab| in the last few layers",
        _within(worst),
        numbers,
    )


def _chi2_always(lines: Frame) -> Finding:
    claim = "Under the independence assumption g_ab falls by χ₂ per layer for all ρ (9)"
    holds = rates.all_of(lines, lambda each: rates.agrees(each, "chi2"))
    return Finding(claim, holds, rates.said(lines, "chi2"))


def _chi2_or_chi1_squared(lines: Frame) -> Finding:
    """Judge whether the rate far from the output is the larger of chi_2 and chi_1^2; a finite
    window measures it with the curvature of theory."""

    def decide(each: Line) -> bool | None:
        larger = max(each.chi2, each.chi1**2)
        beyond = each.chi1**2 > each.chi2
        slower = each.low > each.chi2 * (1 + rates.FINITE / each.width)
        if beyond:
            right = slower
        else:
            right = rates.agrees(each, "chi2") is not False
        nearer = abs(np.log(each.rate / larger)) <= abs(np.log(each.rate / each.chi1))
        if np.isnan(each.rate):
            return None
        return bool(right and nearer)

    claim = "g_ab falls by χ₂ per layer only if σ_w² < ρ²; otherwise more slowly, towards χ₁²"
    numbers = "; ".join(
        f"{e.network}: {rates.measured(e)}, χ₂ {e.chi2:.4f}, χ₁² {e.chi1**2:.4f}"
        for _, e in lines.iterrows()
    )
    return Finding(claim, rates.all_of(lines, decide), numbers, "corrected", "S1.5")


def _floor(records: Records) -> Finding:
    """Judge whether |g_ab| falls by chi_1 per layer where its mean is far below the noise, and the
    noise falls as the inverse root of the width."""
    lines = records["far rates"]
    widths = records["widths"]
    lines = lines[[float(name[4:]) < LEAST_KEEP_FAR for name in lines.network]]
    slope = rates.all_of(lines, lambda each: rates.agrees(each, "chi1"))
    power = power_of_width(widths.width, widths.noise, widths.low, widths.high)
    root = power.low - FINITE <= -0.5 <= power.high + FINITE
    widest = widths.iloc[-1]
    level = widest.low * (1 - FINITE) <= widest.theory <= widest.high * (1 + FINITE)
    scale = widest.width**0.5
    numbers = (
        f"std(g_ab)/g_aa ~ N^({power}) at L−l = {NOISE_AT}, ρ = {NOISE_KEEP:g}; √N std/g_aa ="
        f" {scale * widest.noise:.3f} [{scale * widest.low:.3f}, {scale * widest.high:.3f}], c*"
        f" ρ/√(1−ρ²) = {scale * widest.theory:.3f}; "
    )
    claim = "The noise of |g_ab|, a floor of relative size N^(-1/2), falls by χ₁ per layer"
    if not known([power.low, widest.low, widest.high]):
        holds = None
    elif root and level:
        holds = slope
    else:
        holds = False
    return Finding(claim, holds, numbers + rates.said(lines, "chi1"), "corrected", "S1.4")


def _start(frame: Frame) -> list[Finding]:
    first = frame[frame.layer <= FIRST]
    holds = {}
    for name in ("printed", "general"):
        beyond = (first["mean"] - first[name]).abs() - FINITE * first[name]
        holds[name] = where_known((beyond < SIGMAS * first.se).all(), beyond, first.se)
    numbers = "; ".join(
        f"l = {int(e.layer)}: measured/(12) = {e['mean'] / e.printed:.2f} ± {e.se / e.printed:.2f},"
        f" measured/general = {e['mean'] / e.general:.2f} ± {e.se / e.general:.2f}"
        for _, e in first.iterrows()
    )
    claim = "(12) predicts g_aa for every length of the input"
    corrected = "With the lengths of every layer instead of q*, (12) predicts g_aa for every input"
    return [
        Finding(claim, holds["printed"], numbers, "ours"),
        Finding(corrected, holds["general"], numbers, "corrected", "S1.3"),
    ]
