"""Whether curves of many depths are one: tau = f(rate x L^beta), and the beta that makes them so.

log tau is fitted by a cubic in log(rate) + beta log(L) for all depths together; the interval of beta is where the sum of
squares stays within what its noise allows (profile likelihood):

    RSS(beta) <= RSS(best) (1 + F(1, n - p) / (n - p))
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

DEGREE = 3
LEVEL = 0.95
POWERS = np.linspace(-1.5, 3, 451)  # of L, tried
CLOSE = 0.25  # powers that are claimed are 0, 1/2 and 1: half the way to the next


@dataclass(frozen=True)
class Power:
    value: float
    low: float
    high: float
    spread: float  # what is left of log tau: standard deviation

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def near(self, claimed: float) -> bool | None:
        """False if all of the interval is far from it; None if the interval reaches to the next one on both sides."""
        if self.low > claimed + CLOSE or self.high < claimed - CLOSE:
            return False
        return True if self.high - self.low < 2 * CLOSE else None


def reached(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[np.isfinite(frame.tau)]


def power(frame: pd.DataFrame) -> Power | None:
    """Of columns depth, rate, tau; None where too few networks came to the accuracy, or only those of one depth."""
    known = reached(frame)
    free = len(known) - (DEGREE + 2)
    if known.depth.nunique() < 2 or free < DEGREE:
        return None
    sums = np.array([residuals(known, known, beta)[1] for beta in POWERS])
    allowed = sums.min() * (1 + stats.f.ppf(LEVEL, 1, free) / free)
    inside = POWERS[sums <= allowed]
    return Power(POWERS[sums.argmin()], inside[0], inside[-1], float(np.sqrt(sums.min() / free)))


def spread(frame: pd.DataFrame, beta: float) -> float:
    """Standard deviation of log tau about the common curve."""
    known = reached(frame)
    return float(np.sqrt(residuals(known, known, beta)[1] / (len(known) - DEGREE - 1)))


def residuals(frame: pd.DataFrame, of: pd.DataFrame, beta: float) -> tuple[np.ndarray, float]:
    """Those of `of` about the cubic that fits `frame`, and the sum of squares of the fit."""
    basis, other = (_basis(each, beta, frame) for each in (frame, of))
    found, *_ = np.linalg.lstsq(basis, np.log(frame.tau), rcond=None)
    own = np.log(frame.tau) - basis @ found
    return (np.log(of.tau) - other @ found).to_numpy(), float(own @ own)


def _basis(frame: pd.DataFrame, beta: float, reference: pd.DataFrame) -> np.ndarray:
    """Powers of the shifted log rate, in units of its range in the reference."""
    shifted, all_shifted = (np.log(each.rate) + beta * np.log(each.depth) for each in (frame, reference))
    middle, half = all_shifted.mean(), max(np.ptp(all_shifted.to_numpy()) / 2, 1e-9)
    return np.vander((shifted.to_numpy() - middle) / half, DEGREE + 1)


def extra_power(frame: pd.DataFrame, beta: float) -> tuple[float, float]:
    """gamma of tau = L^gamma f(rate x L^beta), and half the width of its interval."""
    known = reached(frame)
    basis = np.column_stack([np.log(known.depth), _basis(known, beta, known)])
    found, *_ = np.linalg.lstsq(basis, np.log(known.tau), rcond=None)
    left = np.log(known.tau) - basis @ found
    free = len(known) - basis.shape[1]
    error = np.sqrt(left @ left / free * np.linalg.inv(basis.T @ basis)[0, 0])
    return float(found[0]), float(stats.t.ppf((1 + LEVEL) / 2, free) * error)
