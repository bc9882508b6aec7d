"""Activations without closed forms: quadrature in one dimension, and for pairs Mehler's series or the plane.

A series of N terms leaves out a known part `rest` of E phi^2. Of a pair it leaves out at most rest c^N, so it can be told
where the series is enough: for smooth functions and moderate q always, for others unless c is close to 1. There the
plane is cut along the kinks, and the gap is the mean of a square, so that nothing is subtracted:

    1 - corr = E [phi(x) / sqrt(E phi(x)^2) - phi(y) / sqrt(E phi(y)^2)]^2 / 2
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from orderone.core.arrays import as_numpy, like, plain, together
from orderone.core.given import ArrayLike
from orderone.core.shapes import Array
from orderone.theory.activations import spectral
from orderone.theory.activations.base import Activation, AtLength
from orderone.theory.gaussian.average import average, smooth_order
from orderone.theory.gaussian.hermite import TERMS, correlated, drop
from orderone.theory.gaussian.pairs import Cuts, plane_average
from orderone.theory.gaussian.panels import REACH, doubling
from orderone.theory.gaussian.series import Series, series

ENOUGH = 1e-13  # of the result, that a series may leave out
SMALLEST = 1e-200  # smaller variances are taken as this one: only ratios matter there

Values = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Square:
    """f^2, comparable, so that what is known of it is found again."""

    f: Values
    even: bool

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.f(x) ** 2


@dataclass(frozen=True)
class Numeric(Activation):
    """phi and phi' as numpy functions; `kinks` are where phi or one of its derivatives jumps."""

    value: Values = field(repr=False)
    slope: Values = field(repr=False)
    kinks: tuple[float, ...] = ()
    parity: int = 0  # 1 if phi is even, -1 if it is odd

    def __call__(self, x: Array) -> Array:
        return _elementwise(self.value, x)

    def derivative(self, x: Array) -> Array:
        return _elementwise(self.slope, x)

    def at(self, q: ArrayLike) -> AtLength:
        xp, q = together(q=q)
        return NumericAtLength(self, q, xp)

    def _mean(self, q: Any, xp: Any) -> Any:
        return like(self.average(self.value, as_numpy(q)), q, xp)

    def _second_moment(self, q: Any, xp: Any) -> Any:
        return like(self.average(Square(self.value, self.parity != 0), as_numpy(q)), q, xp)

    def _derivative_moment(self, q: Any, xp: Any) -> Any:
        return like(self.slope_moment(as_numpy(q)), q, xp)

    def _pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        size = xp.sqrt(self._second_moment(q1, xp)) * xp.sqrt(self._second_moment(q2, xp))
        return size * (1 - self._output_gap(q1, q2, gap, xp))

    def _derivative_pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        return self._pairwise(Pairs.derivative_pair, q1, q2, gap, xp)

    def _drop(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        return self._pair(q1, q2, 0 * gap, xp) - self._pair(q1, q2, gap, xp)

    def _output_gap(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        return self._pairwise(Pairs.output_gap, q1, q2, gap, xp)

    def _pairwise(self, method: Any, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        first, second, gaps = np.broadcast_arrays(*(as_numpy(x) for x in (q1, q2, gap)))
        values = method(Pairs.of(self, first.ravel(), second.ravel()), gaps.ravel())
        return like(values.reshape(gaps.shape), gap, xp)

    def of_length(self, q: Any, xp: Any) -> tuple[Array, ...]:
        """The length; its root and that of the slope at c = 1, by the size; what the series lacks; and the series."""
        lengths = np.maximum(as_numpy(q), SMALLEST)
        found = self.series(lengths)
        ratio = np.sqrt(lengths) / np.where(found.size > 0, found.size, 1.0)
        known = lengths, ratio, ratio * np.sqrt(found.slope_moment), np.sqrt(found.slope_rest), np.sqrt(found.rest)
        return tuple(like(vector, q, xp) for vector in (*known, *spectral.columns(found, self.parity)))

    def gap_and_slope(
        self, one: tuple[Array, ...], other: tuple[Array, ...], gap: Array, xp: Any
    ) -> tuple[Array, Array]:
        """From the series, and from the plane for those pairs where it lacks something."""
        (q1, ratio1, steep1, lack1, rest1, *a1), (q2, ratio2, steep2, lack2, rest2, *a2) = one, other
        gap, rest = xp.clip(gap, 0.0, 2.0), rest1 * rest2 if one is other else None
        new, slope = spectral.gap_and_slope(a1, a2, gap, self.parity, rest, xp)
        if not bool(xp.any(lack1 > 0)) and not bool(xp.any(lack2 > 0)):
            return new, slope
        equal = (gap == 0) & (q1 == q2)
        new, slope = xp.where(equal, 0.0, new), xp.where(equal, steep1 * steep2, slope)
        where = spectral.unclear(lack1 * lack2, gap, xp) & ~equal
        if bool(xp.any(where)):
            first, second, ratio = (xp.broadcast_to(v, gap.shape)[where] for v in (q1, q2, ratio1 * ratio2))
            new[where] = self._output_gap(first, second, gap[where], xp)
            slope[where] = ratio * self._derivative_pair(first, second, gap[where], xp)
        return new, slope

    def average(self, f: Values, q: np.ndarray) -> np.ndarray:
        """E f(sqrt(q) z) for f with the kinks of phi."""
        largest = _round_up(q)
        return average(f, q, _smooth_order(self, f, largest), self.cuts(largest))

    def series(self, q: np.ndarray) -> Series:
        largest = _round_up(q)
        square = Square(self.value, self.parity != 0)
        order, moment = _smooth_order(self, square, largest), self.average(square, q)
        return series(self.value, self.parity, q, (moment, self.slope_moment(q)), order, self.cuts(largest))

    def slope_moment(self, q: np.ndarray) -> np.ndarray:
        return self.average(Square(self.slope, self.parity != 0), q)

    def point_masses(self, q1: float, q2: float, gap: float) -> float:
        """What jumps add to E phi'(x) phi'(y)."""
        return 0.0

    def cuts(self, q: float) -> np.ndarray:
        return np.concatenate([self.kinks, doubling(REACH * np.sqrt(q))])


class Pairs:
    """Averages over pairs with variances q1, q2, which are flat arrays; what depends on them alone is computed once."""

    def __init__(self, phi: Numeric, q1: np.ndarray, q2: np.ndarray, first: Series, second: Series):
        self.phi, self.q1, self.q2, self.first, self.second = phi, q1, q2, first, second
        self.products = first.a * second.a
        self.unequal = ((first.a - second.a) ** 2).sum(-1) / 2 + (first.rest + second.rest) / 2
        self.rest = np.sqrt(first.rest * second.rest)
        self.complete = np.maximum(first.slope_rest, second.slope_rest) == 0
        self.same = q1 == q2

    @classmethod
    def of(cls, phi: Numeric, q1: np.ndarray, q2: np.ndarray) -> "Pairs":
        q1, q2 = np.maximum(q1, SMALLEST), np.maximum(q2, SMALLEST)
        if np.array_equal(q1, q2):
            both = phi.series(q1)
            return cls(phi, q1, q2, both, both)
        both = phi.series(np.concatenate([q1, q2]))
        return cls(phi, q1, q2, both.select(slice(None, len(q1))), both.select(slice(len(q1), None)))

    def select(self, rows: np.ndarray) -> "Pairs":
        return Pairs(self.phi, self.q1[rows], self.q2[rows], self.first.select(rows), self.second.select(rows))

    def output_gap(self, gap: np.ndarray) -> np.ndarray:
        left_out = self.rest * np.abs(1 - gap) ** TERMS
        result = self.unequal + drop(self.products, self.first.orders, gap) - left_out
        unclear = ~(self.complete | (left_out <= ENOUGH * np.abs(result)) | (self.same & (gap == 0)))
        return self._on_the_plane(result, unclear, gap, self._square)

    def derivative_pair(self, gap: np.ndarray) -> np.ndarray:
        n = self.first.orders
        result = correlated(self.products[:, n > 0] * n[n > 0], n[n > 0] - 1, gap)
        result *= self.first.size / np.sqrt(self.q1) * self.second.size / np.sqrt(self.q2)
        at_one = self.same & (gap == 0)
        result = np.where(at_one, self.first.slope_moment, result)
        unclear = ~(self.complete | (self.rest * _largest_left_out(gap) <= ENOUGH * np.abs(result)) | at_one)
        return self._on_the_plane(result, unclear, gap, self._slopes)

    def _on_the_plane(self, result: np.ndarray, unclear: np.ndarray, gap: np.ndarray, integrand: Any) -> np.ndarray:
        for i in np.flatnonzero(unclear):
            cuts = Cuts(np.array(self.phi.kinks), self.phi.cuts(max(self.q1[i], self.q2[i])))
            result[i] = integrand(self.q1[i], self.q2[i], gap[i], cuts, self.first.size[i], self.second.size[i])
        return result

    def _square(self, q1: float, q2: float, gap: float, cuts: Cuts, one: float, two: float) -> float:
        phi = self.phi.value
        return plane_average(lambda x, y: (phi(x) / one - phi(y) / two) ** 2 / 2, q1, q2, gap, cuts)

    def _slopes(self, q1: float, q2: float, gap: float, cuts: Cuts, *_: float) -> float:
        slope = self.phi.slope
        smooth = plane_average(lambda x, y: slope(x) * slope(y), q1, q2, gap, cuts)
        return smooth + self.phi.point_masses(q1, q2, gap)


class NumericAtLength(AtLength):
    """Keeps the series at its variances."""

    def __init__(self, activation: Numeric, q: Any, xp: Any, pairs: Pairs | None = None):
        super().__init__(activation, q, xp)
        self.pairs = pairs or Pairs.of(activation, as_numpy(q).ravel(), as_numpy(q).ravel())

    def select(self, rows: Any) -> "NumericAtLength":
        return NumericAtLength(self.pairs.phi, self.q[rows], self.xp, self.pairs.select(rows))

    def output_gap(self, gap: Any) -> Any:
        return self._flat(self.pairs.output_gap, gap)

    def derivative_pair(self, gap: Any) -> Any:
        return self._flat(self.pairs.derivative_pair, gap)

    def _flat(self, method: Values, gap: Any) -> Any:
        return like(method(as_numpy(gap).ravel()).reshape(gap.shape), gap, self.xp)


def _elementwise(f: Values, x: Array) -> Array:
    xp, x = together(x=x)
    return plain(like(f(as_numpy(x).ravel()).reshape(x.shape), x, xp))


def _largest_left_out(gap: np.ndarray) -> np.ndarray:
    """The largest n c^(n-1) beyond the last term."""
    with np.errstate(divide="ignore"):
        best = np.clip(-1 / np.log(np.abs(1 - gap)), TERMS, 1e18)
    return best * np.abs(1 - gap) ** (best - 1)


def _round_up(q: np.ndarray) -> float:
    """A power of two, so that neighbouring problems share what is known of a function."""
    return float(2.0 ** np.ceil(np.log2(max(float(q.max()), SMALLEST))))


@lru_cache(maxsize=4096)
def _smooth_order(phi: Numeric, f: Values, q: float) -> int | None:
    return smooth_order(f, q, phi.cuts(q))
