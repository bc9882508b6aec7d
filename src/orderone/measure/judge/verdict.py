"""PASS, FAIL, SHRINKS or UNCLEAR: the verdict on a fitted exponent, and the expected one.

Exponents of theory are multiples of one half, and a mistake changes them by one half or one.

    Law     PASS if the exponent is within 0.25 of the prediction and the interval within 0.5. FAIL
            if the exponent is further away and the interval excludes the prediction. A rough
            prediction (`Expected.rough`) has 0.6 and 1.2 instead.
    Bound   PASS if the exponent is at most bound + 0.25, the interval ends below bound + 0.5, and
            the exponent is at most 0.25 below the prediction (otherwise SHRINKS). FAIL if the whole
            interval is above bound + 0.25.
            A bound may have a lower end, the smallest exponent that measured alignment explains:
            FAIL if the whole interval is more than 0.25 below it.
    Bound that the rule itself exceeds by more than 0.25
            FAIL if the interval is above the bound and the exponent more than 0.1 above it.

Anything else is UNCLEAR (inconclusive): more seeds, or sizes further apart, will decide. So is a
FAIL with an interval wider than 1.5, a FAIL of a quantity that is a witness only (`soft`), and a
deviation that fades: less than half of it is left at the larger half of the sizes.
The numbers are in `thresholds`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from orderone.measure.fit import Fit
from orderone.measure.judge.thresholds import BOUNDARY, FADES, LEAST_GROWTH, NEXT, ROUGH, WIDE
from orderone.observe.quantities import Quantity

# axis -> symbol of the size
SYMBOLS = {
    "width": "n",
    "depth": "L",
    "expert count": "M",
    "rank": "r",
    "repetition": "R",
    "batch size": "B",
    "token count": "D",
}
UNKNOWN = math.nan


class Verdict(StrEnum):
    """Verdict on one line of a check, or on the whole; compares and prints like its string."""

    PASS = "PASS"
    FAIL = "FAIL"
    SHRINKS = "SHRINKS"  # the change falls faster with size than the rule predicts
    UNCLEAR = "UNCLEAR"

    def __repr__(self) -> str:
        return repr(self.value)


class Reason(StrEnum):
    """Kinds of causes that the verdict on the whole check depends on."""

    FROZEN = "frozen"  # no step changes the tensor
    SCHEDULE = "schedule"
    SAME_SHAPES = "all models are equal"
    PREDICTED_GROWTH = "predicted growth"  # the rule itself predicts growth
    SHRINKS = "too small"  # smaller than missing alignment explains
    # initial size and learning rate ignore a multiplier in the forward code; its power is
    # `Judgement.multiplier`
    MULTIPLIER = "multiplier"
    NOISY = "noisy"  # the interval reaches beyond what is allowed
    FADES = "fades"  # a deviation that gets weaker at the larger sizes
    SETTING = "setting"  # a setting of the optimizer, known without measurement
    OTHER = ""


@dataclass(frozen=True)
class Expected:
    """Expected exponent of one quantity."""

    exponent: float = UNKNOWN  # exponent that the rule predicts
    bound: float = math.inf  # the largest exponent that keeps everything of order one
    # the smallest exponent that missing alignment explains; below it, something is divided
    least: float = -math.inf
    two_sided: bool = False  # compare with `exponent` on both sides (a law), not with `bound`
    margin: float = BOUNDARY  # largest excess over `bound`
    soft: bool = False  # growth is no fault by itself: it is UNCLEAR instead of FAIL
    role: str = ""
    rough: bool = False  # derived from the size of gradients, which follow their law less closely
    # tensor into which the plan wrote a factor of another layer, so that this size is not of order
    # one, and is right
    gauge_of: str = ""
    # how `least` was computed: the largest exponent, and what is subtracted from it
    parts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Judgement:
    """One line of `Check.exponents`."""

    module: str
    quantity: Quantity
    step: int
    exponent: float
    low: float
    high: float
    predicted: float
    verdict: Verdict
    cause: str
    role: str
    reason: Reason = Reason.OTHER
    # the largest exponent that keeps everything of order one; NaN where the prediction is a law
    bound: float = math.nan
    least: float = -math.inf  # the smallest exponent that missing alignment explains
    # power of a multiplier in the forward code that this learning rate and initial size ignore
    multiplier: float = 0.0
    # how `least` was computed: the largest exponent, and what is subtracted from it
    parts: tuple[tuple[str, float], ...] = ()


class Finding(NamedTuple):
    """The verdict on one fit, with its cause in words for anything but PASS."""

    verdict: Verdict
    cause: str = ""
    reason: Reason = Reason.OTHER


# --- the verdict on one fit -----------------------------------------------------------------------


def verdict_on_fit(fit: Fit, expected: Expected, axis: str = "width") -> Finding:
    """Return the verdict on a fitted exponent."""
    sized = _FitInWords(fit, axis)
    if expected.two_sided:
        finding = _compare_with_prediction(sized, expected)
    else:
        finding = _compare_with_bound(sized, expected)
    if finding.verdict == Verdict.FAIL and fit.high - fit.low > WIDE:
        return Finding(Verdict.UNCLEAR, sized.noisy, Reason.NOISY)
    if finding.verdict == Verdict.FAIL and _fades(fit, _allowed_end(fit, expected)):
        return _faded(sized, expected, finding)
    if finding.verdict == Verdict.FAIL and expected.soft and finding.reason != Reason.SHRINKS:
        cause = f"{finding.cause}; this matters only with SGD, or where eps is not small"
        return Finding(Verdict.UNCLEAR, cause)
    return finding


def _allowed_end(fit: Fit, expected: Expected) -> float:
    """Return the allowed exponent that is nearest to a failed fit."""
    if expected.two_sided:
        return expected.exponent
    if fit.exponent > expected.bound:
        return expected.bound
    return expected.least


def _fades(fit: Fit, allowed: float) -> bool:
    """Return whether a deviation is a correction of finite size, smaller in larger models.

    A fault is a power of the size, which is the same at all sizes.
    """
    excess = fit.exponent - allowed
    return (fit.upper - allowed) / excess < FADES  # False if `upper` is unknown (NaN)


def _faded(sized: "_FitInWords", expected: Expected, failure: Finding) -> Finding:
    """Return UNCLEAR for a deviation that gets weaker at the larger sizes, with what theory says.

    Growth that the rule itself predicts is no correction of finite size, and stays predicted.
    """
    weaker = (
        f"{failure.cause}; but the larger half of the {sized.axis}s gives only"
        f" {sized.power(sized.fit.upper)}"
    )
    if failure.reason == Reason.PREDICTED_GROWTH:
        cause = (
            f"{weaker}, although {sized.power(expected.exponent)} is predicted. Use a smaller"
            f" learning rate, or other {sized.axis}s"
        )
        return Finding(Verdict.UNCLEAR, cause, Reason.PREDICTED_GROWTH)
    cause = f"{weaker}, so it may vanish in larger models. Use larger {sized.axis}s"
    return Finding(Verdict.UNCLEAR, cause, Reason.FADES)


class _FitInWords(NamedTuple):
    """A fit, and parts of sentences about it."""

    fit: Fit
    axis: str

    def power(self, exponent: float) -> str:
        return f"{SYMBOLS[self.axis]}^{exponent:+z.2f}"

    @property
    def measured(self) -> str:
        return self.power(self.fit.exponent)

    @property
    def noisy(self) -> str:
        return (
            f"inconclusive: the measured power is between {self.power(self.fit.low)} and"
            f" {self.power(self.fit.high)}; use more seeds, or {self.axis}s further apart"
        )

    def too_fast(self, bound: float) -> str:
        return f"measured {self.measured}, allowed at most {self.power(bound)}"


def _compare_with_prediction(sized: _FitInWords, expected: Expected) -> Finding:
    """Compare with an exponent that theory predicts on both sides."""
    fit = sized.fit
    predicted = expected.exponent
    excess = fit.exponent - predicted
    if expected.rough:
        near = ROUGH
        next_exponent = 2 * ROUGH
    else:
        near = BOUNDARY
        next_exponent = NEXT
    if abs(excess) <= near:
        if predicted - next_exponent < fit.low and fit.high < predicted + next_exponent:
            return Finding(Verdict.PASS)
        return Finding(Verdict.UNCLEAR, sized.noisy, Reason.NOISY)
    if predicted in fit:
        return Finding(Verdict.UNCLEAR, sized.noisy, Reason.NOISY)
    size = "too large"
    if not excess > 0:
        size = "too small"
    cause = f"{size} in large models: measured {sized.measured}, predicted {sized.power(predicted)}"
    return Finding(Verdict.FAIL, cause)


def _compare_with_bound(sized: _FitInWords, expected: Expected) -> Finding:
    """Compare with an upper bound of theory."""
    fit = sized.fit
    bound = expected.bound
    if expected.exponent > bound + BOUNDARY:
        return _compare_with_predicted_growth(sized, expected)
    if fit.low > bound + expected.margin:
        return Finding(Verdict.FAIL, f"{_excess(fit, bound)}: {sized.too_fast(bound)}")
    if fit.exponent > bound + expected.margin or fit.high >= bound + NEXT:
        return Finding(Verdict.UNCLEAR, sized.noisy, Reason.NOISY)
    if fit.high < expected.least - BOUNDARY:
        cause = (
            f"shrinks by more than missing alignment explains: measured {sized.measured}, at least"
            f" {sized.power(expected.least)} is expected"
        )
        return Finding(Verdict.FAIL, cause, Reason.SHRINKS)
    possible = min(expected.exponent, bound)
    if fit.exponent < possible - BOUNDARY:  # False where nothing is predicted (NaN)
        cause = (
            f"shrinks (large models are under-trained): measured {sized.measured}, the rule allows"
            f" {sized.power(possible)}"
        )
        return Finding(Verdict.SHRINKS, cause)
    return Finding(Verdict.PASS)


def _excess(fit: Fit, bound: float) -> str:
    """Return in words what is wrong with an exponent above its bound."""
    if bound < 0 and fit.exponent < BOUNDARY:
        return "shrinks too little"
    return "grows"


def _compare_with_predicted_growth(sized: _FitInWords, expected: Expected) -> Finding:
    """Compare where the rule itself predicts growth: FAIL if the fit shows growth."""
    fit = sized.fit
    if fit.low > expected.bound and fit.exponent > expected.bound + LEAST_GROWTH:
        cause = f"grows, as the rule itself predicts: {sized.too_fast(expected.bound)}"
        return Finding(Verdict.FAIL, cause, Reason.PREDICTED_GROWTH)
    cause = (
        f"the rule itself predicts {sized.power(expected.exponent)}; measured at these sizes:"
        f" {sized.measured}"
    )
    return Finding(Verdict.UNCLEAR, cause, Reason.PREDICTED_GROWTH)


# --- spurious growth ------------------------------------------------------------------------------


def without_cancellation(judgements: Sequence[Judgement]) -> list[Judgement]:
    """Turn spurious growth from cancellation into UNCLEAR.

        RMS(h_t) <= RMS(h_0) + RMS(h_t - h_0)

    An output grows no faster than its initial value or its change, which are judged separately. If
    neither grows and the output seems to, the two cancel in small models. A strong weight decay
    causes this; the effect fades where weights are large compared with updates.
    """
    healthy = set()
    for line in judgements:
        if line.verdict in (Verdict.PASS, Verdict.SHRINKS):
            healthy.add((line.module, line.quantity, line.step))

    corrected = []
    for line in judgements:
        grows_later = (
            line.verdict == Verdict.FAIL and line.quantity == Quantity.OUTPUT and line.step > 0
        )
        start = (line.module, Quantity.OUTPUT, 0)
        change = (line.module, Quantity.CHANGE, line.step)
        if grows_later and start in healthy and change in healthy:
            reason = (
                "neither the initial value nor the change grows: in small models, the two partly"
                " cancel"
            )
            line = replace(line, verdict=Verdict.UNCLEAR, cause=f"{line.cause}; but {reason}")
        corrected.append(line)
    return corrected
