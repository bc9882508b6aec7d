"""How the best learning rate moves with the size: octaves per doubling, beside what theory
predicts, and a verdict.

    x*(n) = x*(n0) + drift log2(n / n0)

by least squares over the sizes; the errors of the optima are independent, so that of the slope is
their weighted sum, with Welch-Satterthwaite's degrees of freedom. (Seeds that share their data
between sizes make optima move together, which a slope does not see: taking them as independent errs
on the safe side.) The interval I of the drift decides:

    transfers           I lies within +-tolerance, and no optimum is beyond the grid
    does not transfer   I lies outside, on one side
    not enough data     anything else: what is missing, and the remedy

Theory: a rate n^-c of a rule is stable up to n^-c*, so one common factor must fall like n^-(c* - c)
for the role that needs it most. That is the drift in width, from full alignment to the worst
(docs/exponents.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orderone.core.inputs import Name
from orderone.optimizers.table import law_name
from orderone.rules import get, names
from orderone.rules.parameterizations import DEPTH_RULES
from orderone.sweeping.optimum import (
    ABOVE,
    BELOW,
    FLAT,
    INSIDE,
    NOWHERE,
    SINGLE,
    Optimum,
    combined,
    quantile,
)
from orderone.theory.exponents import Parameterization, max_lr

TRANSFERS = "transfers"
MOVES = "does not transfer"
UNKNOWN = "not enough data"
SIZES = 3
RATES = 5
SEEDS = 2  # fewest


@dataclass(frozen=True)
class Drift:
    """Octaves of log2(lr) per doubling of the size."""

    rule: str
    slope: float
    low: float
    high: float
    error: float  # standard, of the slope
    # under full and under the worst alignment; nan where theory says nothing
    predicted: tuple[float, float]
    verdict: str
    why: str
    remedy: str = ""


def judge(
    rule: str,
    optima: Sequence[Optimum],
    rates: int,
    predicted: tuple[float, float],
    tolerance: float,
    confidence: float,
    axis: str,
) -> Drift:
    inside = [optimum for optimum in optima if optimum.beyond == INSIDE]
    slope, low, high, error = fit(inside, confidence)
    verdict, why, remedy = _verdict(optima, inside, rates, (low, high), tolerance, axis)
    return Drift(rule, slope, low, high, error, predicted, verdict, why, remedy)


def fit(optima: Sequence[Optimum], confidence: float) -> tuple[float, float, float, float]:
    """Slope, interval and standard error; everything is possible with fewer than two optima, or
    without a second seed."""
    if len(optima) < 2:
        return math.nan, -math.inf, math.inf, math.inf
    doublings = np.log2([optimum.size for optimum in optima])
    weights = (doublings - doublings.mean()) / ((doublings - doublings.mean()) ** 2).sum()
    slope = float(weights @ np.array([optimum.x for optimum in optima]))
    parts: list[tuple[float, float, int, float]] = []
    for weight, optimum in zip(weights, optima, strict=True):
        parts.append((float(weight), optimum.noise, optimum.seeds - 1, optimum.resolution))
    error, freedom = combined(parts)
    reach = quantile(freedom, confidence) * error
    return slope, slope - reach, slope + reach, error


def _verdict(
    optima: Sequence[Optimum],
    inside: Sequence[Optimum],
    rates: int,
    interval: tuple[float, float],
    tolerance: float,
    axis: str,
) -> tuple[str, str, str]:
    low, high = interval
    lacking = _lacking(optima, inside, rates, axis)
    drift = f"the drift lies between {low:+.2f} and {high:+.2f} octaves per doubling"
    # A size beyond the grid takes nothing back from what the others show.
    enough = not lacking[0] or (len(inside) >= SIZES and rates >= RATES)
    if enough and (low > tolerance or high < -tolerance):
        return MOVES, f"{drift}, outside +-{tolerance:g}", ""
    if lacking[0]:
        return UNKNOWN, *lacking
    if -tolerance <= low and high <= tolerance:
        return TRANSFERS, f"{drift}, within +-{tolerance:g}", ""
    return UNKNOWN, f"{drift}: neither within nor outside +-{tolerance:g}", _narrow(inside, axis)


def _lacking(
    optima: Sequence[Optimum], inside: Sequence[Optimum], rates: int, axis: str
) -> tuple[str, str]:
    """What no verdict can do without, and the remedy."""
    if len(optima) < SIZES:
        return f"{len(optima)} {axis}s were run, and {SIZES} are needed", f"add {axis}s"
    if rates < RATES:
        if rates == 1:
            ran = "1 learning rate was run"
        else:
            ran = f"{rates} learning rates were run"
        return f"{ran}, and {RATES} are needed", "add learning rates around the best"
    fewest = min(optimum.seeds for optimum in optima)
    if fewest < SEEDS:
        return (
            f"{axis}s have {fewest} seed, which shows no scatter",
            f"run {SEEDS} seeds or more, better 3",
        )
    if len(inside) < len(optima):
        return _beyond([optimum for optimum in optima if optimum.beyond != INSIDE], axis)
    return "", ""


def _beyond(outside: Sequence[Optimum], axis: str) -> tuple[str, str]:
    """Return where the optima are that are not inside the grid, and the remedies."""
    words = {
        BELOW: "the optimum is below the grid",
        ABOVE: "the optimum is above the grid",
        NOWHERE: "the optimum is nowhere: all learning rates diverged",
        FLAT: "the losses do not tell the learning rates apart",
        SINGLE: "one learning rate is no grid",
    }
    sizes_by_side: dict[str, list[str]] = {}
    for optimum in outside:
        sizes_by_side.setdefault(optimum.beyond, []).append(str(optimum.size))
    places: list[str] = []
    for side, word in words.items():
        if side in sizes_by_side:
            places.append(f"{axis} {', '.join(sizes_by_side[side])}: {word}")
    directions: list[str] = []
    if BELOW in sizes_by_side or NOWHERE in sizes_by_side:
        directions.append("smaller")
    if ABOVE in sizes_by_side:
        directions.append("larger")
    remedies: list[str] = []
    if directions:
        remedies.append(f"widen the grid to {' and '.join(directions)} learning rates")
    if FLAT in sizes_by_side:
        remedies.append("train longer, or widen the grid to both sides")
    if SINGLE in sizes_by_side:
        remedies.append("add learning rates")
    return "; ".join(places), "; ".join(remedies)


def _narrow(optima: Sequence[Optimum], axis: str) -> str:
    """Return the remedy for the larger part of the error: the seeds' or the grid's."""
    noise = sum(optimum.noise**2 for optimum in optima)
    grid = sum(optimum.resolution**2 for optimum in optima)
    if noise > grid:
        first = "add seeds"
    else:
        first = "take a finer grid of learning rates around the optima"
    return f"{first}, or {axis}s further apart"


@lru_cache
def predicted_drift(
    rule: Name, optimizer: Name, axis: Name, depth: Name | None = None
) -> tuple[float, float]:
    """Octaves per doubling, under full and under the worst alignment; nan where theory says
    nothing."""
    if axis == "depth":
        if depth in DEPTH_RULES:
            return (0.0, 0.0)
        return (math.nan, math.nan)
    if rule not in names():
        return math.nan, math.nan
    law = law_name(optimizer)
    parameterization = get(rule, law)
    return (
        _width_drift(parameterization, law, alignment="full"),
        _width_drift(parameterization, law, alignment="worst"),
    )


def _width_drift(parameterization: Parameterization, law: str, alignment: str) -> float:
    """Return the octaves by which the role falls that needs it most."""
    largest = max_lr(parameterization, optimizer=law, alignment=alignment)
    excess = max(c - parameterization.c[role] for role, c in largest.items())
    return -float(excess) + 0.0  # 0.0, not -0.0
