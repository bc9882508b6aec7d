"""Activations with jumps.

A jump of height J at t makes the slope a point mass there: E phi'(x)^2 is infinite, and

    E phi'(x) phi'(y) = E s(x) s(y) + sum_tu J_t J_u p(t, u)
                        + sum_t J_t [p1(t) E(s(y) at x = t) + p2(t) E(s(x) at y = t)]

where s is the slope between the jumps and p, p1, p2 are the densities of (x, y), of x and of y.
"""

from dataclasses import dataclass

import numpy as np

from orderone.theory.activations.numeric import Numeric
from orderone.theory.gaussian.panels import cut_line, density

ORDER = 16
SMALLEST = 1e-280


@dataclass(frozen=True)
class Jumping(Numeric):
    """Activation with `jumps` at its kinks; they are 0 where phi is continuous."""

    jumps: tuple[float, ...] = ()

    def slope_moment(self, q: np.ndarray) -> np.ndarray:
        return np.full(np.shape(q), np.inf)

    def point_masses(self, q1: float, q2: float, gap: float) -> float:
        at = np.array(self.kinks)
        height = np.array(self.jumps)
        a = at / np.sqrt(q1)
        b = at / np.sqrt(q2)
        variance = max(gap * (2 - gap), SMALLEST)
        distance = np.minimum(((a[:, None] - b) ** 2 + 2 * gap * a[:, None] * b) / variance, 1500)
        both = height @ np.exp(-distance / 2) @ height / (2 * np.pi * np.sqrt(q1 * q2 * variance))
        x_jumps = self._one_jumps(a, height, q1, q2, gap)
        y_jumps = self._one_jumps(b, height, q2, q1, gap)
        return both + x_jumps + y_jumps

    def _one_jumps(
        self, a: np.ndarray, height: np.ndarray, q1: float, q2: float, gap: float
    ) -> float:
        """Return the part where x jumps and y has its smooth slope; a = t / sqrt(q1)."""
        mean = np.sqrt(q2) * (1 - gap) * a[:, None]
        spread = np.sqrt(q2 * max(gap * (2 - gap), SMALLEST))
        z, weights = cut_line(np.clip((self.cuts(q2) - mean) / spread, -1e9, 1e9), ORDER)
        slopes = (self.slope(mean + spread * z) * weights).sum(axis=-1)
        return float(height * density(a) / np.sqrt(q1) @ slopes)
