"""Measures of how well a rule transfers, after Kalra and Barkeshli 2026 (arXiv 2605.21486).

They name three: the quality of the fit of a power law to the best learning rates, its robustness
against errors of extrapolation, and the asymptotic loss penalty of a parameterization. Their
formulas are not copied here; these are ours, with x = log2(lr), sizes n_1 < ... < n_k:

    scatter     root mean square of x*(n_i) - line, the line being the fit of `drift`, in octaves
                (k - 2 degrees of freedom)
    misfit      probability of a larger sum of squares of (x*(n_i) - line) / error_i, if a power law
                with the stated errors were right; below 0.05 it does not fit
    left out    the learning rate that `target` names for n_k without the trainings of n_k, minus
                the best one that was measured there, in octaves; and what it costs in loss
    sharpening  slope of log2(a) per doubling, with the bend a of the loss in octaves^2: an error of
                the learning rate costs a (error)^2, which grows with the size if it is positive
    behind      loss at n_k minus that of the best rule of the study there
    penalty     the same in the limit of large sizes, from the offsets of the laws of `forecast`
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from orderone.core.errors import InputError
from orderone.sweeping.drift import SIZES, Drift
from orderone.sweeping.forecast import fit_law
from orderone.sweeping.optimum import INSIDE, Optimum
from orderone.sweeping.power_law import Value


@dataclass(frozen=True)
class Quality:
    """Quality of transfer of one rule; a number is nan where the trainings do not support it."""

    rule: str
    scatter: float  # octaves
    misfit: float  # probability
    left_out: float  # octaves
    left_out_cost: float  # loss
    sharpening: float  # octaves of the bend per doubling
    behind: float  # loss
    penalty: float  # loss
    penalty_low: float
    penalty_high: float
    missing: str = ""  # why numbers are nan, with codes


def names() -> list[str]:
    """Return the names of the columns of `Transfer.quality`."""
    return [each.name for each in fields(Quality)]


def scatter(optima: Sequence[Optimum], drift: Drift) -> tuple[float, float]:
    """Return the scatter of the optima around the line in octaves, and the probability of more."""
    inside = [best for best in optima if best.beyond == INSIDE]
    if len(inside) < SIZES:
        return math.nan, math.nan
    doublings = np.log2([best.size for best in inside])
    x = np.array([best.x for best in inside])
    residuals = x - x.mean() - drift.slope * (doublings - doublings.mean())
    freedom = len(inside) - 2
    rms = math.sqrt(float((residuals**2).sum()) / freedom)
    errors = np.array([math.hypot(best.noise, best.resolution) for best in inside])
    if not np.isfinite(errors).all():
        return rms, math.nan
    from scipy.special import chdtrc

    return rms, float(chdtrc(freedom, float(((residuals / errors) ** 2).sum())))


def sharpening(optima: Sequence[Optimum]) -> float:
    """Return the slope of log2(bend) per doubling of the size."""
    known = [best for best in optima if best.beyond == INSIDE and best.bend > 0]
    if len(known) < SIZES:
        return math.nan
    doublings = np.log2([best.size for best in known])
    bends = np.log2([best.bend for best in known])
    return float(np.polyfit(doublings, bends, 1)[0])


def limits(
    optima: Mapping[str, Sequence[Optimum]], axis: str, level: float
) -> dict[str, Value | InputError]:
    """Return the loss of every rule in the limit of large sizes, or why it is unknown."""
    known: dict[str, Value | InputError] = {}
    for rule, several in optima.items():
        try:
            known[rule] = fit_law(rule, [(None, best) for best in several], axis, None, level).limit
        except InputError as error:
            known[rule] = error
    return known


def behind(optima: Mapping[str, Sequence[Optimum]], rule: str) -> float:
    """Return the loss at the largest size that all rules share, minus the best of all rules."""
    by_size = {name: {best.size: best.loss for best in several} for name, several in optima.items()}
    shared = set.intersection(*(set(losses) for losses in by_size.values()))
    if not shared or len(optima) < 2:
        return math.nan
    largest = max(shared)
    return by_size[rule][largest] - min(losses[largest] for losses in by_size.values())


def penalty(known: Mapping[str, Value | InputError], rule: str) -> Value:
    """Return the limit of this rule minus the lowest limit of the others.

    The interval is conservative: both ends of both intervals are combined.
    """
    unknown = Value(math.nan, math.nan, math.nan)
    own = known[rule]
    others = [value for name, value in known.items() if name != rule]
    if isinstance(own, InputError) or not others:
        return unknown
    values = [value for value in others if isinstance(value, Value)]
    if len(values) < len(others):
        return unknown
    best = min(values, key=lambda value: value.value)
    return Value(own.value - best.value, own.low - best.high, own.high - best.low)
