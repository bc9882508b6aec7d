"""Activations without closed forms: quadrature in one dimension; `numeric_pairs` has pairs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import TypeAlias

import numpy as np

from orderone.core.arrays import as_numpy, like, plain, together
from orderone.core.inputs import Array, ArrayLike
from orderone.theory.activations.base import AtLength
from orderone.theory.activations.numeric_pairs import ENOUGH, NumericAtLength, Pairs
from orderone.theory.activations.spectral import SMALLEST, Spectral
from orderone.theory.gaussian.average import average, smooth_order
from orderone.theory.gaussian.functions import Square, Values
from orderone.theory.gaussian.pairs import ORDER as PLANE_ORDER
from orderone.theory.gaussian.pairs import Cuts
from orderone.theory.gaussian.panels import REACH, doubling, economical_line
from orderone.theory.gaussian.series import Series, series

PairsMethod: TypeAlias = Callable[[Pairs, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Numeric(Spectral):
    """Activation from numpy functions phi and phi'; at `kinks`, phi or a derivative jumps."""

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

    def _mean(self, q: Array, xp: ModuleType) -> Array:
        return like(self.average(self.value, as_numpy(q)), q, xp)

    def _second_moment(self, q: Array, xp: ModuleType) -> Array:
        return like(self.average(Square(self.value, self.parity != 0), as_numpy(q)), q, xp)

    def _derivative_moment(self, q: Array, xp: ModuleType) -> Array:
        return like(self.slope_moment(as_numpy(q)), q, xp)

    def _pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        size = xp.sqrt(self._second_moment(q1, xp)) * xp.sqrt(self._second_moment(q2, xp))
        return size * (1 - self._output_gap(q1, q2, gap, xp))

    def _derivative_pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        return self._pairwise(Pairs.derivative_pair, q1, q2, gap, xp)

    def _drop(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        return self._pair(q1, q2, 0 * gap, xp) - self._pair(q1, q2, gap, xp)

    def _output_gap(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        return self._pairwise(Pairs.output_gap, q1, q2, gap, xp)

    def _pairwise(
        self, method: PairsMethod, q1: Array, q2: Array, gap: Array, xp: ModuleType
    ) -> Array:
        first, second, gaps = np.broadcast_arrays(as_numpy(q1), as_numpy(q2), as_numpy(gap))
        values = method(Pairs.of(self, first.ravel(), second.ravel()), gaps.ravel())
        return like(values.reshape(gaps.shape), gap, xp)

    def average(self, f: Values, q: np.ndarray) -> np.ndarray:
        """Return E f(sqrt(q) z) for f with the kinks of phi."""
        low, high = _range(q)
        return average(f, q, _smooth_order(self, f, low, high), self.cuts(high))

    def series(self, q: np.ndarray) -> Series:
        low, high = _range(q)
        square = Square(self.value, self.parity != 0)
        order = _smooth_order(self, square, low, high)
        moment = self.average(square, q)
        moments = (moment, self.slope_moment(q))
        return series(self.value, self.parity, q, moments, order, self.cuts(high))

    def slope_moment(self, q: np.ndarray) -> np.ndarray:
        """Return E phi'(x)^2."""
        return self.average(Square(self.slope, self.parity != 0), q)

    def point_masses(self, q1: float, q2: float, gap: float) -> float:
        return 0.0

    def slope_is_rough(self, q: float) -> bool:
        return False

    def plane_cuts(self, q: float) -> Cuts:
        """Return the cuts of the plane for variances up to q: only kinks, if they are enough."""
        return _plane_cuts(self, _range(np.array([q]))[1])

    def plane_points(self, q: float) -> np.ndarray:
        """Return the cuts of the plane if kinks are not enough."""
        return self.cuts(q)

    def cuts(self, q: float) -> np.ndarray:
        """Return the cuts of the line for variances up to q."""
        return np.concatenate([self.kinks, doubling(REACH * np.sqrt(q))])


def _elementwise(f: Values, x: Array) -> Array:
    xp, x = together(x=x)
    return plain(like(f(as_numpy(x).ravel()).reshape(x.shape), x, xp))


def _range(q: np.ndarray) -> tuple[float, float]:
    """Return powers of 2 around all of q, so that neighbouring problems share cached results.

    Below 1e-12 the lower bound is constant.
    """
    high = float(2.0 ** min(np.ceil(np.log2(max(float(q.max()), SMALLEST))), 1023))
    low = float(64.0 ** np.floor(np.log2(max(float(q.min()), 1e-12)) / 6))
    return min(low, high / 2), high


@lru_cache(maxsize=1024)
def _plane_cuts(phi: Numeric, q: float) -> Cuts:
    kinks = np.array(phi.kinks, float)
    every = phi.plane_points(q)
    lengths = np.array([q, q / 1.7, q / 3])
    economical = True
    for f in (phi.value, phi.slope):
        square = Square(f, even=False)
        coarse = average(square, lengths, None, kinks)
        fine = average(square, lengths, None, every)
        if not np.all(np.abs(coarse - fine) <= ENOUGH * np.abs(fine)):
            return Cuts(kinks, every)
        root = np.sqrt(lengths)[:, None]
        z, weights = economical_line(np.clip(kinks / root, -1e9, 1e9), PLANE_ORDER)
        fewer = (square(root * z) * weights).sum(axis=-1)
        economical &= bool(np.all(np.abs(fewer - fine) <= ENOUGH * np.abs(fine)))
    return Cuts(kinks, np.empty(0), economical)


@lru_cache(maxsize=4096)
def _smooth_order(phi: Numeric, f: Values, low: float, high: float) -> int | None:
    return smooth_order(f, low, high, phi.cuts(high))
