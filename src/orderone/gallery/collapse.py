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
    return frame.dropna(subset=["tau"])


def power(frame: pd.DataFrame) -> Power | None:
    """Of columns depth, rate, tau; None where too few networks came to the accuracy, or only those of one depth."""
    known = reached(frame)
    free = len(known) - (DEGREE + 2)
    if known.depth.nunique() < 2 or free < DEGREE:
        return None
    points = Points.of(known)
    sums = np.array([points.fit(float(beta)).sum_of_squares for beta in POWERS])
    inside = POWERS[sums <= sums.min() * (1 + stats.f.ppf(LEVEL, 1, free) / free)]
    step, left = POWERS[1] - POWERS[0], float(np.sqrt(sums.min() / free))
    return Power(float(POWERS[sums.argmin()]), float(inside[0] - step), float(inside[-1] + step), left)


def spread(frame: pd.DataFrame, beta: float) -> float:
    """Standard deviation of log tau about the common curve."""
    return Points.of(reached(frame)).fit(beta).spread


@dataclass(frozen=True)
class Points:
    """Logarithms of rates, depths and steps."""

    rate: np.ndarray
    depth: np.ndarray
    tau: np.ndarray

    @classmethod
    def of(cls, frame: pd.DataFrame) -> "Points":
        return cls(*(np.log(frame[name].to_numpy(float)) for name in ("rate", "depth", "tau")))

    def fit(self, beta: float, extra: bool = False) -> "Cubic":
        return Cubic(self, beta, extra)


class Cubic:
    """log tau = cubic of log rate + beta log L, with `extra` also + gamma log L."""

    def __init__(self, points: Points, beta: float, extra: bool = False):
        self.beta, self.extra = beta, extra
        shifted = points.rate + beta * points.depth
        self.middle, self.half = shifted.mean(), max(np.ptp(shifted) / 2, 1e-9)  # powers of numbers near 1
        self.basis = self._basis(points)
        self.coefficients, *_ = np.linalg.lstsq(self.basis, points.tau, rcond=None)
        self.residuals = self.apart(points)
        self.sum_of_squares = float(self.residuals @ self.residuals)
        self.spread = float(np.sqrt(self.sum_of_squares / max(len(points.tau) - self.basis.shape[1], 1)))

    def _basis(self, points: Points) -> np.ndarray:
        cubic = np.vander((points.rate + self.beta * points.depth - self.middle) / self.half, DEGREE + 1)
        return np.column_stack([points.depth, cubic]) if self.extra else cubic

    def apart(self, points: Points) -> np.ndarray:
        """How far other points are above the curve."""
        return points.tau - self._basis(points) @ self.coefficients


def extra_power(frame: pd.DataFrame, beta: float) -> Power:
    """gamma of tau = L^gamma f(rate x L^beta)."""
    points = Points.of(reached(frame))
    fit = points.fit(beta, extra=True)
    error = fit.spread * np.sqrt(np.linalg.inv(fit.basis.T @ fit.basis)[0, 0])
    half = stats.t.ppf((1 + LEVEL) / 2, len(points.tau) - fit.basis.shape[1]) * error
    gamma = float(fit.coefficients[0])
    return Power(gamma, gamma - float(half), gamma + float(half), fit.spread)
