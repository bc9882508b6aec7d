"""The step function, phi(x) = 1 for x > 0 and 0 for x < 0: a jump, so its derivative is a point
mass.

E phi(x) phi(y)   = 1/2 - t / (2 pi),    cos t = c          the arc-cosine kernel of order zero (Cho
                                         & Saul 2009)
E phi'(x) phi'(y) = 1 / (2 pi sqrt(q1 q2) sin t)            the density of (x, y) at the origin
E phi'(x)^2       = inf                                     chi_1 is infinite: two inputs always
                  drift apart
"""

import math
from dataclasses import dataclass
from typing import Any

from orderone.core.arrays import plain, together
from orderone.core.inputs import Array
from orderone.theory.activations.angle import angle, sine
from orderone.theory.activations.base import Activation


@dataclass(frozen=True)
class Step(Activation):
    """1 for x > 0, 0 for x < 0, 1/2 at 0."""

    def __call__(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain((1 + xp.sign(x)) / 2)

    def derivative(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(xp.where(x == 0, math.inf + 0 * x, 0 * x))

    def _mean(self, q: Any, xp: Any) -> Any:
        return 0.5 + 0 * q

    def _second_moment(self, q: Any, xp: Any) -> Any:
        return 0.5 + 0 * q

    def _derivative_moment(self, q: Any, xp: Any) -> Any:
        return math.inf + 0 * q

    def _pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        return 0.5 - self._drop(q1, q2, gap, xp)

    def _derivative_pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        density = xp.sqrt(q1) * xp.sqrt(q2) * sine(gap, xp)
        return xp.where(
            density > 0,
            0.5 / math.pi / xp.where(density > 0, density, 1 + 0 * density),
            math.inf + 0 * density,
        )

    def _drop(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        return angle(gap, xp) / (2 * math.pi) + 0 * q1 + 0 * q2


STEP = Step("step")
