"""Fit of one curve to many depths: tau = L^gamma f(rate x L^beta), and the powers that collapse
them.

log tau is fitted by gamma log L + a cubic in log(rate) + beta log(L) for all depths together. Both
powers are free: with gamma = 0, curves that rise with depth would give a beta far below the one of
their minima. The interval of each power is its profile likelihood: the powers at which the sum of
squares, minimised over the other power, is not significantly larger than its minimum,

    RSS(beta) <= RSS(best) (1 + F(1, n - p) / (n - p))
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

DEGREE = 3
LEVEL = 0.95
POWERS = np.linspace(-3, 4, 351)  # candidates for the power of L
CLOSE = 0.25  # claimed powers are 0, 1/2 and 1: half of their distance


@dataclass(frozen=True)
class Power:
    """A power with its interval; an end outside the candidates is infinite."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def near(self, claimed: float) -> bool | None:
        """Return False if the whole interval is far from the claimed power, and None if it reaches
        another power that might be claimed."""
        if self.low > claimed + CLOSE or self.high < claimed - CLOSE:
            return False
        if abs(self.low - claimed) < 2 * CLOSE > abs(self.high - claimed):
            return True
        return None


@dataclass(frozen=True)
class Collapse:
    beta: Power
    gamma: Power
    spread: float  # standard deviation of log tau about the fit


def reached(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.loc[np.isfinite(frame.tau.astype(float)) & np.isfinite(frame.rate.astype(float))]


def powers(frame: pd.DataFrame) -> Collapse | None:
    """Fit the columns depth, rate and tau; None if too few networks reached the accuracy, or only
    networks of one depth."""
    known = reached(frame)
    free = len(known) - (DEGREE + 3)
    if known.depth.nunique() < 2 or free < DEGREE:
        return None
    points = Points.of(known)
    fits = [points.fit(float(beta), extra=True) for beta in POWERS]
    sums = np.array([fit.sum_of_squares for fit in fits])
    gammas, errors = np.array([fit.extra for fit in fits]).T
    # for each gamma, the best beta
    other = (sums + ((POWERS[:, None] - gammas) / errors) ** 2).min(1)
    return Collapse(_profile(sums, free), _profile(other, free), float(np.sqrt(sums.min() / free)))


def _profile(sums: np.ndarray, free: int) -> Power:
    inside = np.flatnonzero(sums <= sums.min() * (1 + stats.f.ppf(LEVEL, 1, free) / free))
    bounds = np.concatenate([[-np.inf], POWERS, [np.inf]])  # one step beyond the candidates inside
    return Power(
        float(POWERS[sums.argmin()]), float(bounds[inside[0]]), float(bounds[inside[-1] + 2])
    )


def spread(frame: pd.DataFrame, beta: float) -> float:
    """Return the standard deviation of log tau about a common curve of rate x L^beta."""
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
    """Fit of log tau = cubic of (log rate + beta log L), with `extra` also + gamma log L."""

    beta: float
    with_gamma: bool
    middle: float
    half: float
    basis: np.ndarray
    coefficients: np.ndarray
    residuals: np.ndarray
    sum_of_squares: float
    spread: float

    def __init__(self, points: Points, beta: float, extra: bool = False) -> None:
        self.beta = beta
        self.with_gamma = extra
        shifted = points.rate + beta * points.depth
        self.middle = float(shifted.mean())
        self.half = float(max(np.ptp(shifted) / 2, 1e-9))  # scales the variable to [-1, 1]
        self.basis = self._basis(points)
        self.coefficients, *_ = np.linalg.lstsq(self.basis, points.tau, rcond=None)
        self.residuals = self.apart(points)
        self.sum_of_squares = float(self.residuals @ self.residuals)
        self.spread = float(
            np.sqrt(self.sum_of_squares / max(len(points.tau) - self.basis.shape[1], 1))
        )

    def _basis(self, points: Points) -> np.ndarray:
        cubic = np.vander(
            (points.rate + self.beta * points.depth - self.middle) / self.half, DEGREE + 1
        )
        if self.with_gamma:
            return np.column_stack([points.depth, cubic])
        return cubic

    @property
    def extra(self) -> tuple[float, float]:
        """Gamma, and its standard error for noise of standard deviation 1."""
        return float(self.coefficients[0]), float(
            np.sqrt(np.linalg.pinv(self.basis.T @ self.basis)[0, 0])
        )

    def apart(self, points: Points) -> np.ndarray:
        """Return how far other points lie above the curve."""
        return points.tau - self._basis(points) @ self.coefficients
