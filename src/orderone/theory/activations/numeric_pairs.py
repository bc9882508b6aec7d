"""Averages over pairs without closed forms: Mehler's series where it is enough, else the plane.

A series of N terms omits a known part `rest` of E phi^2. For a pair it omits at most rest c^N. So
it is known where the series is enough: for smooth functions and moderate q always, for others
unless c is close to 1. There the plane is cut along the kinks, and the gap is the mean of a square,
without cancellation:

    1 - corr = E [phi(x) / sqrt(E phi(x)^2) - phi(y) / sqrt(E phi(y)^2)]^2 / 2
"""

from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

import numpy as np

from orderone.core.arrays import as_numpy, like
from orderone.core.inputs import Array
from orderone.theory.activations.base import AtLength
from orderone.theory.activations.spectral import SMALLEST, Spectral
from orderone.theory.gaussian.adaptive_pairs import expect_pair
from orderone.theory.gaussian.hermite import TERMS, correlated, drop
from orderone.theory.gaussian.pairs import Cuts, plane_average
from orderone.theory.gaussian.series import Series

LONGEST = 1e300  # ten standard deviations of longer signals overflow when squared
STEP = 1e-3  # step of differences, relative to the gap
ENOUGH = 1e-13  # part of the result that a series may omit
NOTHING = 1e-20  # what it may omit of E phi'(x) phi'(y), in units of E phi^2 / q

# From q1, q2, gap, cuts, sqrt(E phi(x)^2), sqrt(E phi(y)^2) to an average over the plane.
PlaneIntegral: TypeAlias = Callable[[float, float, float, Cuts, float, float], float]


class Pairs:
    """Averages over pairs with variances q1, q2, which are flat arrays.

    Quantities that depend only on the variances are computed once.
    """

    def __init__(
        self, phi: Spectral, q1: np.ndarray, q2: np.ndarray, first: Series, second: Series
    ) -> None:
        self.phi = phi
        self.q1 = q1
        self.q2 = q2
        self.first = first
        self.second = second
        self.products: np.ndarray = first.a * second.a
        missing = (first.rest + second.rest) / 2
        self.unequal: np.ndarray = ((first.a - second.a) ** 2).sum(-1) / 2 + missing
        self.rest: np.ndarray = np.sqrt(first.rest * second.rest)
        self.complete: np.ndarray = np.maximum(first.slope_rest, second.slope_rest) == 0
        self.same: np.ndarray = q1 == q2

    @classmethod
    def of(cls, phi: Spectral, q1: np.ndarray, q2: np.ndarray) -> "Pairs":
        """Expand phi at the variances."""
        q1 = np.clip(q1, SMALLEST, LONGEST)
        q2 = np.clip(q2, SMALLEST, LONGEST)
        if np.array_equal(q1, q2):
            common = phi.series(q1)
            return cls(phi, q1, q2, common, common)
        both = phi.series(np.concatenate([q1, q2]))
        n = len(q1)
        return cls(phi, q1, q2, both.select(slice(None, n)), both.select(slice(n, None)))

    def select(self, rows: np.ndarray) -> "Pairs":
        """Return some of the pairs."""
        return Pairs(
            self.phi,
            self.q1[rows],
            self.q2[rows],
            self.first.select(rows),
            self.second.select(rows),
        )

    def pair(self, gap: np.ndarray) -> np.ndarray:
        """Return E phi(x) phi(y)."""
        size = self.first.size * self.second.size
        result = np.where(np.isinf(size), 1.0, size) * (1 - self.output_gap(gap))
        # If E phi^2 is infinite, the product may still have an average.
        rows = np.flatnonzero(np.isinf(size))
        if len(rows):
            f = self.phi.value
            lengths = np.stack([self.q1[rows], self.q2[rows]])
            result[rows] = expect_pair(f, f, lengths, gap[rows], self.phi.kinks).value
        return result

    def output_gap(self, gap: np.ndarray) -> np.ndarray:
        """Return 1 - corr(phi(x), phi(y)); correlations are zero where E phi^2 is infinite."""
        infinite = np.isinf(self.first.size) | np.isinf(self.second.size)
        if infinite.any():
            result = np.where(self.same & (gap == 0), 0.0, 1.0)
            rows = np.flatnonzero(~infinite)
            if len(rows):
                result[rows] = self.select(rows).output_gap(gap[rows])
            return result
        omitted = self.rest * np.abs(1 - gap) ** TERMS
        result = self.unequal + drop(self.products, self.first.orders, gap) - omitted
        at_one = self.same & (gap == 0)
        clear = self.complete | (omitted <= ENOUGH * np.abs(result)) | at_one
        return self._on_the_plane(result, ~clear, gap, self._square)

    def derivative_pair(self, gap: np.ndarray) -> np.ndarray:
        """Return E phi'(x) phi'(y)."""
        infinite = np.isinf(self.first.size) | np.isinf(self.second.size)
        if infinite.any():
            result = np.full(len(gap), np.inf)
            rows = np.flatnonzero(~infinite)
            if len(rows):
                result[rows] = self.select(rows).derivative_pair(gap[rows])
            return result
        n = self.first.orders
        result = correlated(self.products[:, n > 0] * n[n > 0], n[n > 0] - 1, gap)
        result *= self.first.size / np.sqrt(self.q1) * self.second.size / np.sqrt(self.q2)
        at_one = self.same & (gap == 0)
        result = np.where(at_one, self.first.slope_moment, result)
        omitted = self.rest * _largest_omitted(gap)
        clear = self.complete | (omitted <= ENOUGH * np.abs(result)) | at_one | (omitted <= NOTHING)
        return self._on_the_plane(result, ~clear, gap, self._slopes)

    def _on_the_plane(
        self, result: np.ndarray, unclear: np.ndarray, gap: np.ndarray, integral: PlaneIntegral
    ) -> np.ndarray:
        """Replace the unclear results by integrals over the plane."""
        for i in np.flatnonzero(unclear):
            cuts = self.phi.plane_cuts(max(self.q1[i], self.q2[i]))
            result[i] = integral(
                self.q1[i], self.q2[i], gap[i], cuts, self.first.size[i], self.second.size[i]
            )
        return result

    def _square(
        self, q1: float, q2: float, gap: float, cuts: Cuts, size1: float, size2: float
    ) -> float:
        phi = self.phi.value

        def half_square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return (phi(x) / size1 - phi(y) / size2) ** 2 / 2

        return plane_average(half_square, q1, q2, gap, cuts)

    def _slopes(
        self, q1: float, q2: float, gap: float, cuts: Cuts, size1: float, size2: float
    ) -> float:
        slope = self.phi.slope
        if self.phi.slope_is_rough(max(q1, q2)):  # then Price's theorem gives the average
            step = min(STEP * gap, 2 - gap)
            less = self._square(q1, q2, gap - step, cuts, size1, size2)
            more = self._square(q1, q2, gap + step, cuts, size1, size2)
            return size1 / np.sqrt(q1) * size2 / np.sqrt(q2) * (more - less) / (2 * step)
        smooth = plane_average(lambda x, y: slope(x) * slope(y), q1, q2, gap, cuts)
        return smooth + self.phi.point_masses(q1, q2, gap)


class NumericAtLength(AtLength):
    """Pairs of one variance, with their series stored."""

    def __init__(
        self, activation: Spectral, q: Array, xp: ModuleType, pairs: Pairs | None = None
    ) -> None:
        super().__init__(activation, q, xp)
        self.pairs: Pairs = pairs or Pairs.of(activation, as_numpy(q).ravel(), as_numpy(q).ravel())

    def select(self, rows: Array) -> "NumericAtLength":
        return NumericAtLength(self.pairs.phi, self.q[rows], self.xp, self.pairs.select(rows))

    def output_gap(self, gap: Array) -> Array:
        return self._flat(self.pairs.output_gap, gap)

    def derivative_pair(self, gap: Array) -> Array:
        return self._flat(self.pairs.derivative_pair, gap)

    def _flat(self, method: Callable[[np.ndarray], np.ndarray], gap: Array) -> Array:
        return like(method(as_numpy(gap).ravel()).reshape(gap.shape), gap, self.xp)


def _largest_omitted(gap: np.ndarray) -> np.ndarray:
    """Return the largest n c^(n-1) beyond the last term."""
    with np.errstate(divide="ignore"):
        n = np.clip(-1 / np.log(np.abs(1 - gap)), TERMS, 1e18)
    return n * np.abs(1 - gap) ** (n - 1)
