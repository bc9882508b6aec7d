"""Averages over pairs without closed forms: Mehler's series where it is enough, the plane where it
is not.

A series of N terms leaves out a known part `rest` of E phi^2. Of a pair it leaves out at most rest
c^N, so it can be told where the series is enough: for smooth functions and moderate q always, for
others unless c is close to 1. There the plane is cut along the kinks, and the gap is the mean of a
square, so that nothing is subtracted:

    1 - corr = E [phi(x) / sqrt(E phi(x)^2) - phi(y) / sqrt(E phi(y)^2)]^2 / 2
"""

from typing import Any

import numpy as np

from orderone.core.arrays import as_numpy, like
from orderone.theory.activations.base import AtLength
from orderone.theory.activations.spectral import SMALLEST
from orderone.theory.gaussian.adaptive_pairs import expect_pair
from orderone.theory.gaussian.hermite import TERMS, correlated, drop
from orderone.theory.gaussian.pairs import Cuts, plane_average
from orderone.theory.gaussian.series import Series

LONGEST = 1e300  # ten standard deviations of longer signals overflow when squared
STEP = 1e-3  # of a gap, for differences
ENOUGH = 1e-13  # of the result, that a series may leave out


class Pairs:
    """For variances q1, q2, which are flat arrays, of a `Numeric` phi; what depends on them alone
    is computed once."""

    def __init__(self, phi: Any, q1: np.ndarray, q2: np.ndarray, first: Series, second: Series):
        self.phi = phi
        self.q1 = q1
        self.q2 = q2
        self.first = first
        self.second = second
        self.products = first.a * second.a
        self.unequal = ((first.a - second.a) ** 2).sum(-1) / 2 + (first.rest + second.rest) / 2
        self.rest = np.sqrt(first.rest * second.rest)
        self.complete = np.maximum(first.slope_rest, second.slope_rest) == 0
        self.same = q1 == q2

    @classmethod
    def of(cls, phi: Any, q1: np.ndarray, q2: np.ndarray) -> "Pairs":
        q1 = np.clip(q1, SMALLEST, LONGEST)
        q2 = np.clip(q2, SMALLEST, LONGEST)
        if np.array_equal(q1, q2):
            both = phi.series(q1)
            return cls(phi, q1, q2, both, both)
        both = phi.series(np.concatenate([q1, q2]))
        return cls(
            phi, q1, q2, both.select(slice(None, len(q1))), both.select(slice(len(q1), None))
        )

    def select(self, rows: np.ndarray) -> "Pairs":
        return Pairs(
            self.phi,
            self.q1[rows],
            self.q2[rows],
            self.first.select(rows),
            self.second.select(rows),
        )

    def pair(self, gap: np.ndarray) -> np.ndarray:
        size = self.first.size * self.second.size
        result = np.where(np.isinf(size), 1.0, size) * (1 - self.output_gap(gap))
        for i in np.flatnonzero(
            np.isinf(size)
        ):  # the product may have an average without the squares
            f = self.phi.value
            lengths = (self.q1[i], self.q2[i])
            result[i] = expect_pair(f, f, lengths, gap[i], self.phi.kinks).value
        return result

    def output_gap(self, gap: np.ndarray) -> np.ndarray:
        """Correlations are zero if one of the second moments is infinite."""
        endless = np.isinf(self.first.size) | np.isinf(self.second.size)
        if endless.any():
            result = np.where(self.same & (gap == 0), 0.0, 1.0)
            some = np.flatnonzero(~endless)
            result[some] = self.select(some).output_gap(gap[some]) if len(some) else 0.0
            return result
        left_out = self.rest * np.abs(1 - gap) ** TERMS
        result = self.unequal + drop(self.products, self.first.orders, gap) - left_out
        unclear = ~(
            self.complete | (left_out <= ENOUGH * np.abs(result)) | (self.same & (gap == 0))
        )
        return self._on_the_plane(result, unclear, gap, self._square)

    def derivative_pair(self, gap: np.ndarray) -> np.ndarray:
        endless = np.isinf(self.first.size) | np.isinf(self.second.size)
        if endless.any():
            result = np.full(len(gap), np.inf)
            some = np.flatnonzero(~endless)
            if len(some):
                result[some] = self.select(some).derivative_pair(gap[some])
            else:
                result[some] = 0.0
            return result
        n = self.first.orders
        result = correlated(self.products[:, n > 0] * n[n > 0], n[n > 0] - 1, gap)
        result *= self.first.size / np.sqrt(self.q1) * self.second.size / np.sqrt(self.q2)
        at_one = self.same & (gap == 0)
        result = np.where(at_one, self.first.slope_moment, result)
        unclear = ~(
            self.complete | (self.rest * _largest_left_out(gap) <= ENOUGH * np.abs(result)) | at_one
        )
        return self._on_the_plane(result, unclear, gap, self._slopes)

    def _on_the_plane(
        self, result: np.ndarray, unclear: np.ndarray, gap: np.ndarray, integrand: Any
    ) -> np.ndarray:
        for i in np.flatnonzero(unclear):
            cuts = self.phi.plane_cuts(max(self.q1[i], self.q2[i]))
            result[i] = integrand(
                self.q1[i], self.q2[i], gap[i], cuts, self.first.size[i], self.second.size[i]
            )
        return result

    def _square(
        self, q1: float, q2: float, gap: float, cuts: Cuts, one: float, two: float
    ) -> float:
        phi = self.phi.value
        return plane_average(lambda x, y: (phi(x) / one - phi(y) / two) ** 2 / 2, q1, q2, gap, cuts)

    def _slopes(
        self, q1: float, q2: float, gap: float, cuts: Cuts, one: float, two: float
    ) -> float:
        slope = self.phi.slope
        if self.phi.slope_is_rough(
            max(q1, q2)
        ):  # then Price's theorem says what the average of slopes is
            step = min(STEP * gap, 2 - gap)
            less, more = (
                self._square(q1, q2, gap + side * step, cuts, one, two) for side in (-1, 1)
            )
            return one / np.sqrt(q1) * two / np.sqrt(q2) * (more - less) / (2 * step)
        smooth = plane_average(lambda x, y: slope(x) * slope(y), q1, q2, gap, cuts)
        return smooth + self.phi.point_masses(q1, q2, gap)


class NumericAtLength(AtLength):
    """Keeps the series at its variances."""

    def __init__(self, activation: Any, q: Any, xp: Any, pairs: Pairs | None = None):
        super().__init__(activation, q, xp)
        self.pairs = pairs or Pairs.of(activation, as_numpy(q).ravel(), as_numpy(q).ravel())

    def select(self, rows: Any) -> "NumericAtLength":
        return NumericAtLength(self.pairs.phi, self.q[rows], self.xp, self.pairs.select(rows))

    def output_gap(self, gap: Any) -> Any:
        return self._flat(self.pairs.output_gap, gap)

    def derivative_pair(self, gap: Any) -> Any:
        return self._flat(self.pairs.derivative_pair, gap)

    def _flat(self, method: Any, gap: Any) -> Any:
        return like(method(as_numpy(gap).ravel()).reshape(gap.shape), gap, self.xp)


def _largest_left_out(gap: np.ndarray) -> np.ndarray:
    """The largest n c^(n-1) beyond the last term."""
    with np.errstate(divide="ignore"):
        best = np.clip(-1 / np.log(np.abs(1 - gap)), TERMS, 1e18)
    return best * np.abs(1 - gap) ** (best - 1)
