"""PASS, FAIL, SHRINKS or UNCLEAR: the verdict on a fitted exponent, given the expected one.

Exponents of theory are multiples of one half, and a mistake changes them by one half or one. So a
measured exponent belongs to the nearest half. It PASSes if that is the expected one and the
interval excludes the next. It FAILs if it is another one and the interval excludes the expected
one. Where theory gives only an upper bound, small networks may still approach it. Growth therefore
FAILs if the whole interval is nearer to the next half, or if the rule itself predicts growth and
the fit shows it. Anything else is UNCLEAR: more seeds, or sizes further apart, decide it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from orderone.measure.fit import Fit
from orderone.measure.judge.expectations import Expected
from orderone.observe.quantities import Quantity

BOUNDARY = 0.25  # half the distance between neighbouring exponents of theory, 0 and 1/2
NEXT = 0.5  # the next exponent of theory
ROUGH = 0.6  # instead of BOUNDARY, where theory gives a rough value only
SHOWS = 0.1  # the least excess over a bound that counts
WIDE = 1.5  # an interval wider than this decides nothing
# sign-like optimizers do not feel the size of gradients; only eps does
SOFT = (Quantity.GRADIENT, Quantity.OUTPUT_GRADIENT)


class Verdict(StrEnum):
    """Verdict on one line of a check, or on the whole; compares and prints like its string."""

    PASS = "PASS"
    FAIL = "FAIL"
    SHRINKS = "SHRINKS"  # updates get smaller with size than the rule permits
    UNCLEAR = "UNCLEAR"

    def __repr__(self) -> str:
        return repr(self.value)


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


# --- the verdict on one fit -----------------------------------------------------------------------


def judge(fit: Fit, expected: Expected, quantity: Quantity) -> tuple[Verdict, str]:
    """Return the verdict and, for anything but PASS, the reason."""
    if expected.law or quantity in SOFT:
        verdict, cause = _judge_law(fit, expected)
    else:
        verdict, cause = _judge_bound(fit, expected)
    if verdict == Verdict.FAIL and fit.high - fit.low > WIDE:
        return Verdict.UNCLEAR, _noisy(fit)
    if verdict == Verdict.FAIL and quantity in SOFT:
        return Verdict.UNCLEAR, f"{cause}; only SGD and eps feel it"
    return verdict, cause


def _judge_law(fit: Fit, expected: Expected) -> tuple[Verdict, str]:
    """Judge an exponent that theory predicts on both sides."""
    law = expected.exponent
    excess = fit.exponent - law
    if expected.rough:
        near = ROUGH
        next_law = 2 * ROUGH
    else:
        near = BOUNDARY
        next_law = NEXT
    if abs(excess) <= near:
        if law - next_law < fit.low and fit.high < law + next_law:
            return Verdict.PASS, ""
        return Verdict.UNCLEAR, _noisy(fit)
    if law in fit:
        return Verdict.UNCLEAR, _noisy(fit)
    size = "too large" if excess > 0 else "too small"
    cause = f"{size} at size: n^{fit.exponent:+.2f} where n^{law:+.2f} is predicted"
    return Verdict.FAIL, cause


def _judge_bound(fit: Fit, expected: Expected) -> tuple[Verdict, str]:
    """Judge an exponent that theory bounds from above."""
    bound = expected.allowed
    if expected.exponent > bound + BOUNDARY:
        return _judge_predicted_growth(fit, expected)
    if fit.low > bound + BOUNDARY:
        return Verdict.FAIL, f"grows: {_too_fast(fit, bound)}"
    if fit.exponent > bound + BOUNDARY or fit.high >= bound + NEXT:
        return Verdict.UNCLEAR, _noisy(fit)
    possible = min(expected.exponent, bound)
    if fit.exponent < possible - BOUNDARY:  # False where nothing is predicted (NaN)
        cause = (
            f"shrinks: under-trained at size: n^{fit.exponent:+.2f} where n^{possible:+.2f} is"
            " possible"
        )
        return Verdict.SHRINKS, cause
    return Verdict.PASS, ""


def _judge_predicted_growth(fit: Fit, expected: Expected) -> tuple[Verdict, str]:
    """Judge where the rule itself predicts growth: any visible growth confirms it."""
    if fit.low > expected.allowed and fit.exponent > expected.allowed + SHOWS:
        cause = f"grows, as the rule itself predicts: {_too_fast(fit, expected.allowed)}"
        return Verdict.FAIL, cause
    cause = (
        f"the rule itself predicts n^{expected.exponent:+.2f}; at these sizes"
        f" n^{fit.exponent:+.2f} shows"
    )
    return Verdict.UNCLEAR, cause


def _too_fast(fit: Fit, bound: float) -> str:
    return f"n^{fit.exponent:+.2f} where at most n^{bound:+.2f} is of order one"


def _noisy(fit: Fit) -> str:
    return (
        f"n^{fit.low:+.2f} to n^{fit.high:+.2f}: too noisy to tell; give more seeds or widths"
        " further apart"
    )


# --- spurious growth ------------------------------------------------------------------------------


def without_cancellation(judgements: Sequence[Judgement]) -> list[Judgement]:
    """Turn spurious growth from cancellation into UNCLEAR.

        RMS(h_t) <= RMS(h_0) + RMS(h_t - h_0)

    An output grows no faster than the faster of its start and its change, which are judged by
    themselves. If neither grows and the output seems to, the two cancel in small models: a strong
    weight decay does that, and the effect fades where weights are large beside their updates.
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
            reason = "neither its start nor its change grows: they cancel in small models"
            line = replace(line, verdict=Verdict.UNCLEAR, cause=f"{line.cause}; but {reason}")
        corrected.append(line)
    return corrected
