"""Drift of the best learning rate with the size, in octaves per doubling, and a verdict.

    x*(n) = x*(n0) + drift log2(n / n0),   x = log2(lr)

The drift is the least-squares slope over the sizes. The errors of the optima are independent, so
the error of the slope is their weighted sum, with Welch-Satterthwaite's degrees of freedom. (Seeds
that share their data between sizes move all optima together, which does not change the slope:
treating them as independent errs on the safe side.) The interval I of the drift decides:

    transfers           I lies within +-tolerance, and no optimum is beyond the grid
    does not transfer   I lies outside, on one side
    inconclusive        anything else; `why` and `remedy` say what is missing

Theory: a learning rate n^-c of a rule is stable up to n^-c*, so one common factor must fall like
n^-(c* - c) for the role that needs it most. That is the predicted drift in width, from full to
worst alignment (docs/exponents.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orderone.core.errors import with_code, without_code
from orderone.core.inputs import Name
from orderone.core.roles import MATRIX_ROLES, ROLES
from orderone.optimizers.table import law_name
from orderone.rules import get, is_known
from orderone.rules.axes import DEPTH_RULES
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
from orderone.theory.exponents import Parameterization, UpdateLaw, max_lr

TRANSFERS = "transfers"
MOVES = "does not transfer"
UNKNOWN = "inconclusive"
# a verdict needs at least as many sizes, learning rates and seeds
SIZES = 3
RATES = 5
SEEDS = 2


@dataclass(frozen=True)
class Drift:
    """Drift of the best learning rate of one rule, in octaves per doubling of the size."""

    rule: str
    slope: float
    low: float
    high: float
    error: float  # standard error of the slope
    # predicted slopes for full and for worst alignment; nan where there is no prediction
    predicted: tuple[float, float]
    verdict: str
    why: str
    remedy: str = ""  # ends with a code

    def should_move(self, tolerance: float) -> bool:
        """Return whether theory predicts a drift outside the tolerance; False without theory."""
        return any(abs(power) > tolerance for power in self.predicted)


def judge(
    rule: str,
    optima: Sequence[Optimum],
    rates: int,
    predicted: tuple[float, float],
    tolerance: float,
    confidence: float,
    axis: str,
) -> Drift:
    """Return the drift of one rule, with its verdict."""
    inside = [optimum for optimum in optima if optimum.beyond == INSIDE]
    slope, low, high, error = fit(inside, confidence)
    verdict, why, remedy = _verdict(optima, inside, rates, (low, high), tolerance, axis)
    return Drift(rule, slope, low, high, error, predicted, verdict, why, remedy)


def fit(optima: Sequence[Optimum], confidence: float) -> tuple[float, float, float, float]:
    """Return slope, low and high end of its interval, and standard error.

    The interval is infinite with fewer than two optima or with a single seed.
    """
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
    missing = _missing(optima, rates, axis)
    drift = f"the drift is between {low:+z.2f} and {high:+z.2f} octaves per doubling"
    # A size with its optimum beyond the grid does not contradict a drift of the others.
    enough = missing is None or (len(inside) >= SIZES and rates >= RATES)
    if enough and (low > tolerance or high < -tolerance):
        return MOVES, f"{drift}, outside +-{tolerance:g}", ""
    if missing is not None:
        return UNKNOWN, *missing
    if -tolerance <= low and high <= tolerance:
        return TRANSFERS, f"{drift}, within +-{tolerance:g}", ""
    remedy = with_code(_narrow(inside, axis), "drift-too-uncertain")
    return UNKNOWN, f"{drift}, which is only partly within +-{tolerance:g}", remedy


def _missing(optima: Sequence[Optimum], rates: int, axis: str) -> tuple[str, str] | None:
    """Return why there cannot be a verdict, and the remedy; None if nothing is missing."""
    outside = [optimum for optimum in optima if optimum.beyond != INSIDE]
    if len(optima) < SIZES:
        why = f"{_counted(len(optima), axis)} run, but {SIZES} or more are needed"
        return why, with_code(f"add {axis}s", "needs-more-sizes")
    if rates < RATES:
        why = f"{_counted(rates, 'learning rate')} run, but {RATES} or more are needed"
        return why, with_code("add learning rates around the best one", "needs-more-rates")
    fewest = min(optimum.seeds for optimum in optima)
    if fewest < SEEDS:
        why = f"with {fewest} seed the variation between seeds is unknown"
        remedy = f"run {SEEDS} seeds or more, better 3"
        if outside:
            where, wider = beyond_grid(outside, axis)
            why = f"{why}; {where}"
            remedy = f"{remedy}; {without_code(wider)}"
        return why, with_code(remedy, "needs-more-seeds")
    if outside:
        return beyond_grid(outside, axis)
    return None


def _counted(number: int, noun: str) -> str:
    """Return "1 width was" or "2 widths were"."""
    if number == 1:
        return f"1 {noun} was"
    return f"{number} {noun}s were"


def beyond_grid(outside: Sequence[Optimum], axis: str) -> tuple[str, str]:
    """Return where the optima outside the grid are, and the remedies."""
    words = {
        BELOW: "the best learning rate is below the grid",
        ABOVE: "the best learning rate is above the grid",
        NOWHERE: "all learning rates diverged",
        FLAT: "all learning rates give the same loss",
        SINGLE: "there is only one learning rate",
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
    why = "; ".join(places)
    remedy = "; ".join(remedies)
    if directions:
        return why, with_code(remedy, "optimum-outside-grid")
    return why, with_code(remedy, "equal-losses")


def _narrow(optima: Sequence[Optimum], axis: str) -> str:
    """Return the remedy for the larger part of the error: seeds or grid."""
    noise = sum(optimum.noise**2 for optimum in optima)
    grid = sum(optimum.resolution**2 for optimum in optima)
    if noise > grid:
        first = "add seeds"
    else:
        first = "use a finer grid of learning rates around the optima"
    return f"{first}, or use {axis}s that are further apart"


@lru_cache
def predicted_drift(
    rule: Name,
    optimizer: Name,
    axis: Name,
    depth: Name | None = None,
    roles: tuple[str, ...] | None = MATRIX_ROLES,
) -> tuple[float, float]:
    """Return the predicted drift in octaves per doubling, for full and for worst alignment.

    `roles` are those of the tensors whose learning rate is tuned; None: not known. The drift is
    nan where theory makes no prediction.
    """
    if axis == "depth":
        if depth in DEPTH_RULES:
            return (0.0, 0.0)
        return (math.nan, math.nan)
    if not is_known(rule):
        return math.nan, math.nan
    law = law_name(optimizer)
    parameterization = get(rule, law)
    return (
        _width_drift(parameterization, law, "full", roles),
        _width_drift(parameterization, law, "worst", roles),
    )


def _width_drift(
    parameterization: Parameterization,
    law: str | UpdateLaw,
    alignment: str,
    roles: tuple[str, ...] | None,
) -> float:
    """Return the drift of the role whose learning rate must fall fastest.

    If the roles are not known, there is a drift only if it is the same for all.
    """
    largest = max_lr(parameterization, optimizer=law, alignment=alignment)
    excess = {role: float(c - parameterization.c[role]) for role, c in largest.items()}
    if roles is None:
        if len(set(excess.values())) > 1:
            return math.nan
        roles = tuple(excess)
    known = [excess[role] for role in roles if role in excess]
    if not known:
        return math.nan
    return -max(known) + 0.0  # 0.0, not -0.0


def roles_with_rate(setting: str, columns: Sequence[str]) -> tuple[str, ...] | None:
    """Return the roles whose learning rate is `setting`; None if they are not known.

    `columns` are all learning rates of the trainings: "lr" is for the roles without their own.
    """
    _, _, key = setting.partition(".")
    if not key:
        return tuple(role for role in MATRIX_ROLES if f"lr.{role}" not in columns)
    if key in ROLES:
        return (key,)
    return None
