"""Pairs of signals that are too long for quadrature.

Signals see the same at all large lengths where phi grows like a power, and E phi' phi' is
proportional to E phi^2 / q. Of a phi that is bounded they see two levels, and near zero, where they
seldom are, how it comes from one to the other. With theta the angle, cos theta = 1 - g, and J the
difference of the levels,

    G(q, g) = J^2 theta(g) / (2 pi E phi^2),         E phi' phi'(q, g) = J^2 / (2 pi q sin theta(g))

if signals differ by far more than the step is wide. Otherwise they see the same as shorter signals,
r < q, that differ by the same, r h = q g:

    G(q, g) = G(r, h) theta(g) / theta(h),         E phi' phi'(q, g) = E phi' phi'(r, h) sqrt(r / q)
"""

from typing import Any

import numpy as np

from orderone.theory.activations import Activation, AtLength
from orderone.theory.activations.angle import angle, sine
from orderone.theory.activations.numeric import Numeric

RESOLVED = 1e20  # the longest signals that quadrature is for
APART = 1e17  # a squared difference that is far more than any step is wide


def at_any_length(phi: Activation, q: np.ndarray) -> AtLength:
    """Averages of pairs at lengths q, a flat array. Closed forms of what is bounded know all of
    them."""
    near = np.minimum(q, RESOLVED)
    if np.array_equal(near, q):
        return phi.at(q)
    bounded = phi.second_moment(q) < 2 * phi.second_moment(near)
    if isinstance(phi, Numeric):
        return FarPairs(phi, q, phi.at(near))
    return phi.at(np.where(bounded, q, near))


class FarPairs(AtLength):
    """`shorter` are the averages at lengths that can be resolved."""

    def __init__(self, phi: Activation, q: np.ndarray, shorter: AtLength):
        super().__init__(phi, q, np)
        self.shorter = shorter
        self.ratio = shorter.q / q
        left, right = (float(phi(side * np.sqrt(RESOLVED))) for side in (-1, 1))
        self.jump = (right - left) ** 2
        self.size = (right**2 + left**2) / 2
        sizes = phi.second_moment(q)
        self.levels = (self.ratio < 1) & np.isclose(sizes, self.size, rtol=1e-6, atol=0)
        self.growth = np.where(self.levels, 1.0, sizes / phi.second_moment(shorter.q) * self.ratio)

    def select(self, rows: Any) -> "FarPairs":
        return FarPairs(self.activation, self.q[rows], self.shorter.select(rows))

    def output_gap(self, gap: Any) -> Any:
        return self._each(
            gap,
            lambda g, rows: self.jump * angle(g, np) / (2 * np.pi * self.size),
            lambda g, h, rows: (
                self.shorter.select(rows).output_gap(h) * angle(g, np) / angle(h, np)
            ),
        )

    def derivative_pair(self, gap: Any) -> Any:
        return self._each(
            gap,
            lambda g, rows: self.jump / (2 * np.pi * self.q[rows] * sine(g, np)),
            lambda g, h, rows: (
                self.shorter.select(rows).derivative_pair(h) * self.growth[rows] * np.sqrt(g / h)
            ),
        )

    def _each(self, gap: np.ndarray, of_a_jump: Any, of_a_step: Any) -> np.ndarray:
        """Quadrature is slow: it is done only for those that need it."""
        found = np.empty(len(gap))
        apart = self.levels & (self.q * gap > APART)
        jumps = np.flatnonzero(apart)
        others = np.flatnonzero(~apart)
        if len(jumps):
            found[jumps] = of_a_jump(gap[jumps], jumps)
        if len(others):
            there = np.where(self.levels, gap / self.ratio, gap)[others]
            found[others] = of_a_step(gap[others], there, others)
        return found
