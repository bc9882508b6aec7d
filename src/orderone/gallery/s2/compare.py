"""Comparison of two small samples: differences of means with intervals, and counts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """Difference of the means of two samples (first minus second), with Welch's interval.

    The interval is infinite for a sample of one number, and if a number is not finite.
    """

    mean: float
    low: float
    high: float

    @property
    def positive(self) -> bool | None:
        """Whether the difference is positive; None if the interval contains 0."""
        if self.low > 0:
            return True
        if self.high < 0:
            return False
        return None

    def __str__(self) -> str:
        return f"{self.mean:+.3g} [{self.low:+.2g}, {self.high:+.2g}]"


def difference(
    first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE
) -> Difference:
    a = np.asarray(first, float)
    b = np.asarray(second, float)
    if not (len(a) and len(b) and np.isfinite([*a, *b]).all()):
        return Difference(np.nan, -np.inf, np.inf)
    mean = float(a.mean() - b.mean())
    if min(len(a), len(b)) < 2:
        return Difference(mean, -np.inf, np.inf)
    va = a.var(ddof=1) / len(a)
    vb = b.var(ddof=1) / len(b)
    if va + vb == 0:
        return Difference(mean, mean, mean)
    freedom = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = float(stats.t.ppf((1 + confidence) / 2, freedom) * np.sqrt(va + vb))
    return Difference(mean, mean - half, mean + half)


def fewer(first: int, second: int, confidence: float = CONFIDENCE) -> bool | None:
    """Return whether events are rarer in the first of two equally long records, by a binomial test;
    None if it cannot decide."""
    if first + second == 0:
        return None
    level = stats.binomtest(min(first, second), first + second).pvalue
    if level < 1 - confidence:
        return bool(first < second)
    return None
