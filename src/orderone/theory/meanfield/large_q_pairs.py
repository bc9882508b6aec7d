"""Pairs of signals that are too long for quadrature.

If phi grows like a power, G does not depend on the length of long signals, and E phi' phi' is
proportional to E phi^2 / q. A bounded phi has two levels and a step near zero, where long signals
rarely are. With theta the angle, cos theta = 1 - g, and J the difference of the levels,

    G(q, g)         = J^2 theta(g) / (2 pi E phi^2)
    E phi' phi'     = J^2 / (2 pi q sin theta(g))

if signals differ by far more than the width of the step. Otherwise they behave like shorter signals
of length r < q that differ by the same amount, r h = q g:

    G(q, g)             = G(r, h) theta(g) / theta(h)
    E phi' phi' (q, g)  = E phi' phi' (r, h) sqrt(r / q)
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from orderone.core.inputs import Array
from orderone.theory.activations import Activation, AtLength
from orderone.theory.activations.angle import angle, sine
from orderone.theory.activations.numeric import Numeric

RESOLVED = 1e20  # longest signals that quadrature can resolve
APART = 1e17  # squared difference far above the width of any step

JumpAverage: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of (gap, rows)
StepAverage: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]  # (g, h, rows)


def at_any_length(phi: Activation, q: np.ndarray) -> AtLength:
    """Return means over pairs at lengths q, a flat array.

    Closed forms of bounded activations hold at all lengths.
    """
    shorter = np.minimum(q, RESOLVED)
    if np.array_equal(shorter, q):
        return phi.at(q)
    bounded = phi.second_moment(q) < 2 * phi.second_moment(shorter)
    if isinstance(phi, Numeric):
        return LargeQPairs(phi, q, phi.at(shorter))
    return phi.at(np.where(bounded, q, shorter))


class LargeQPairs(AtLength):
    """Means over pairs of long signals; `shorter` are those at lengths that can be resolved."""

    def __init__(self, phi: Activation, q: np.ndarray, shorter: AtLength) -> None:
        super().__init__(phi, q, np)
        self.shorter = shorter
        self.ratio: np.ndarray = shorter.q / q
        left = float(phi(-np.sqrt(RESOLVED)))
        right = float(phi(np.sqrt(RESOLVED)))
        self.jump: float = (right - left) ** 2
        self.size: float = (right**2 + left**2) / 2
        moments = phi.second_moment(q)
        growth = moments / phi.second_moment(shorter.q) * self.ratio
        bounded = np.isclose(moments, self.size, rtol=1e-6, atol=0)
        self.levels: np.ndarray = (self.ratio < 1) & bounded
        self.growth: np.ndarray = np.where(self.levels, 1.0, growth)

    def select(self, rows: Array) -> "LargeQPairs":
        return LargeQPairs(self.activation, self.q[rows], self.shorter.select(rows))

    def output_gap(self, gap: Array) -> Array:
        def of_jump(g: np.ndarray, rows: np.ndarray) -> np.ndarray:
            return self.jump * angle(g, np) / (2 * np.pi * self.size)

        def of_step(g: np.ndarray, h: np.ndarray, rows: np.ndarray) -> np.ndarray:
            return self.shorter.select(rows).output_gap(h) * angle(g, np) / angle(h, np)

        return self._average(gap, of_jump, of_step)

    def derivative_pair(self, gap: Array) -> Array:
        def of_jump(g: np.ndarray, rows: np.ndarray) -> np.ndarray:
            return self.jump / (2 * np.pi * self.q[rows] * sine(g, np))

        def of_step(g: np.ndarray, h: np.ndarray, rows: np.ndarray) -> np.ndarray:
            shorter = self.shorter.select(rows).derivative_pair(h)
            return shorter * self.growth[rows] * np.sqrt(g / h)

        return self._average(gap, of_jump, of_step)

    def _average(self, gap: np.ndarray, of_jump: JumpAverage, of_step: StepAverage) -> np.ndarray:
        """Apply `of_jump` where signals are far apart, and `of_step`, which is slow, elsewhere."""
        result = np.empty(len(gap))
        apart = self.levels & (self.q * gap > APART)
        jumps = np.flatnonzero(apart)
        steps = np.flatnonzero(~apart)
        if len(jumps):
            result[jumps] = of_jump(gap[jumps], jumps)
        if len(steps):
            shorter_gap = np.where(self.levels, gap / self.ratio, gap)[steps]
            result[steps] = of_step(gap[steps], shorter_gap, steps)
        return result
