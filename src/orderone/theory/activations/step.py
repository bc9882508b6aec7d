"""Step function, phi(x) = 1 for x > 0 and 0 for x < 0. Its derivative is a point mass.

    E phi(x) phi(y)   = 1/2 - t / (2 pi),   cos t = c
    E phi'(x) phi'(y) = 1 / (2 pi sqrt(q1 q2) sin t)
    E phi'(x)^2       = inf

The first is the arc-cosine kernel of order zero (Cho & Saul 2009), the second the density of (x, y)
at the origin. By the third, chi_1 is infinite: two inputs always drift apart.
"""

import math
from dataclasses import dataclass
from types import ModuleType

from orderone.core.arrays import plain, together
from orderone.core.inputs import Array
from orderone.theory.activations.angle import angle, sine
from orderone.theory.activations.base import Activation


@dataclass(frozen=True)
class Step(Activation):
    """Activation phi(x) = 1 for x > 0, 0 for x < 0, 1/2 at 0."""

    def __call__(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain((1 + xp.sign(x)) / 2)

    def derivative(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(xp.where(x == 0, math.inf + 0 * x, 0 * x))

    def _mean(self, q: Array, xp: ModuleType) -> Array:
        return 0.5 + 0 * q

    def _second_moment(self, q: Array, xp: ModuleType) -> Array:
        return 0.5 + 0 * q

    def _derivative_moment(self, q: Array, xp: ModuleType) -> Array:
        return math.inf + 0 * q

    def _pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        return 0.5 - self._drop(q1, q2, gap, xp)

    def _derivative_pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        area = xp.sqrt(q1) * xp.sqrt(q2) * sine(gap, xp)
        density = 0.5 / math.pi / xp.where(area > 0, area, 1 + 0 * area)
        return xp.where(area > 0, density, math.inf + 0 * area)

    def _drop(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        return angle(gap, xp) / (2 * math.pi) + 0 * q1 + 0 * q2


STEP = Step("step")
