"""PASS, FAIL, SHRINKS or UNCLEAR: a fitted exponent beside what was expected.

Exponents of theory come in halves, and what goes wrong changes them by one half or one. So a
measured exponent belongs to the nearest half: PASS if that is the expected one and the interval
excludes the next, FAIL if it is another one and the interval excludes the expected. Where there is
only an upper bound, small networks may well be on their way to it, so that growth FAILs if the
whole interval is nearer to the next half, or if the rule itself foretells it and it shows. Anything
else is UNCLEAR: more seeds, or sizes further apart, decide it.
"""

from orderone.measure.fit import Fit
from orderone.measure.prediction import Expected

PASS = "PASS"
FAIL = "FAIL"
SHRINKS = "SHRINKS"
UNCLEAR = "UNCLEAR"
BOUNDARY = 0.25
NEXT = 0.5
ROUGH = 0.6
SHOWS = 0.1
WIDE = 1.5
SOFT = (
    "gradient",
    "output gradient",
)  # sign-like optimizers do not feel the size of gradients; only eps does


def judge(fit: Fit, expected: Expected, quantity: str) -> tuple[str, str]:
    """The verdict, and for anything but PASS, why."""
    if expected.law or quantity in SOFT:
        verdict, cause = _law(fit, expected)
    else:
        verdict, cause = _bound(fit, expected)
    if verdict == FAIL and fit.high - fit.low > WIDE:
        return UNCLEAR, _noisy(fit)
    if quantity in SOFT and verdict == FAIL:
        return UNCLEAR, f"{cause}; only SGD and eps feel it"
    return verdict, cause


def _law(fit: Fit, expected: Expected) -> tuple[str, str]:
    off = fit.exponent - expected.exponent
    law = expected.exponent
    near, next_law = (ROUGH, 2 * ROUGH) if expected.rough else (BOUNDARY, NEXT)
    if abs(off) <= near:
        if law - next_law < fit.low and fit.high < law + next_law:
            return (PASS, "")
        return (UNCLEAR, _noisy(fit))
    if law in fit:
        return UNCLEAR, _noisy(fit)
    size = "too large" if off > 0 else "too small"
    return FAIL, f"{size} at size: n^{fit.exponent:+.2f} where n^{law:+.2f} is predicted"


def _bound(fit: Fit, expected: Expected) -> tuple[str, str]:
    most = expected.allowed
    if expected.exponent > most + BOUNDARY:
        return _foretold(fit, expected)
    if fit.low > most + BOUNDARY:
        return FAIL, f"grows: {_too_fast(fit, most)}"
    if fit.exponent > most + BOUNDARY or fit.high >= most + NEXT:
        return UNCLEAR, _noisy(fit)
    if fit.exponent < min(expected.exponent, most) - BOUNDARY:  # never, where nothing is predicted
        least = min(expected.exponent, most)
        return (
            SHRINKS,
            (
                f"shrinks: under-trained at size: n^{fit.exponent:+.2f} where n^{least:+.2f} is"
                " possible"
            ),
        )
    return PASS, ""


def _foretold(fit: Fit, expected: Expected) -> tuple[str, str]:
    """The rule itself predicts growth: any that shows confirms it."""
    if fit.low > expected.allowed and fit.exponent > expected.allowed + SHOWS:
        return FAIL, f"grows, as the rule itself predicts: {_too_fast(fit, expected.allowed)}"
    return (
        UNCLEAR,
        (
            f"the rule itself predicts n^{expected.exponent:+.2f}; at these sizes"
            f" n^{fit.exponent:+.2f} shows"
        ),
    )


def _too_fast(fit: Fit, most: float) -> str:
    return f"n^{fit.exponent:+.2f} where at most n^{most:+.2f} is of order one"


def _noisy(fit: Fit) -> str:
    return (
        f"n^{fit.low:+.2f} to n^{fit.high:+.2f}: too noisy to tell; give more seeds or widths"
        " further apart"
    )
