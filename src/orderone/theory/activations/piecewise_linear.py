"""Activations with one slope on each side of zero: linear, ReLU, leaky and shaped ReLU, and the
absolute value.

    phi(x) = right max(x, 0) + left min(x, 0) = A x + B abs(x),   A = (right + left) / 2,   B = (right - left) / 2

    E phi(x) phi(y)   = sqrt(q1 q2) [A^2 c + B^2 K(c)],    K(c) = c + (2 / pi) (sin t - t cos t),
                                                           c = cos t
    E phi'(x) phi'(y) = A^2 + B^2 (1 - 2 t / pi)

K is the arc-cosine kernel of order one (Cho & Saul 2009) for the absolute value; S3 (B.4) is the
same for ReLU. The maps scale with the lengths, so the correlation never depends on them. Shaped
ReLU: right, left = 1 + c_plus, c_minus over a power of the width, S3 (2.5).
"""

import math
from dataclasses import dataclass
from typing import Any

from orderone.core.arrays import plain, together
from orderone.core.inputs import Array
from orderone.core.reals import real
from orderone.theory.activations.angle import angle, segment
from orderone.theory.activations.base import Activation


@dataclass(frozen=True)
class PiecewiseLinear(Activation):
    """x on the right times `right`, on the left times `left`."""

    right: float
    left: float

    @property
    def odd(self) -> float:
        return (self.right + self.left) / 2

    @property
    def even(self) -> float:
        return (self.right - self.left) / 2

    @property
    def slope(self) -> float:
        """E phi(x)^2 / q, for every q."""
        return (self.right**2 + self.left**2) / 2

    @property
    def homogeneous(self) -> float:
        return self.slope

    def __call__(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(self.right * xp.clip(x, 0, None) + self.left * xp.clip(x, None, 0))

    def derivative(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(self.odd + self.even * xp.sign(x))

    def _mean(self, q: Any, xp: Any) -> Any:
        return self.even * math.sqrt(2 / math.pi) * xp.sqrt(q)

    def _second_moment(self, q: Any, xp: Any) -> Any:
        return self.slope * q

    def _derivative_moment(self, q: Any, xp: Any) -> Any:
        return self.slope + 0 * q

    def _pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        kernel = self.slope * (1 - gap) + self._excess(gap, xp)
        return xp.sqrt(q1) * xp.sqrt(q2) * kernel

    def _derivative_pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        if self.even == 0:
            bend = 0 * gap
        else:
            bend = self.even**2 * (2 / math.pi) * angle(gap, xp)
        return self.slope - bend + 0 * q1 + 0 * q2

    def _drop(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        return xp.sqrt(q1) * xp.sqrt(q2) * (self.slope * gap - self._excess(gap, xp))

    def _output_gap(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        if self.slope == 0:
            return gap + 0 * q1 + 0 * q2
        return gap - self._excess(gap, xp) / self.slope + 0 * q1 + 0 * q2

    def of_length(self, q: Array, xp: Any) -> tuple[Array, ...]:
        return ()

    def gap_and_slope(
        self, one: tuple[Array, ...], other: tuple[Array, ...], gap: Array, xp: Any
    ) -> tuple[Array, Array]:
        """Both from one angle. Rounding leaves a gap within sqrt(gap) units of the last place, of
        either sign."""
        if self.even == 0 or self.slope == 0:
            return gap, xp.ones_like(gap)
        weight = 2 / math.pi * self.even**2 / self.slope
        c = 1 - gap
        sine = xp.sqrt(xp.abs(gap * (2 - gap)))
        theta = xp.atan2(sine, c)
        theta *= weight  # in place: arrays that stay in the cache are half of the speed
        sine *= weight
        c *= theta
        sine -= c
        return gap - sine, 1 - theta

    def _excess(self, gap: Any, xp: Any) -> Any:
        """B^2 (K(c) - c)."""
        if self.even == 0:
            return 0 * gap
        return self.even**2 * (2 / math.pi) * segment(gap, xp)


LINEAR = PiecewiseLinear("linear", 1.0, 1.0)
RELU = PiecewiseLinear("relu", 1.0, 0.0)
ABS = PiecewiseLinear("abs", 1.0, -1.0)


def leaky_relu(slope: float = 0.01) -> PiecewiseLinear:
    """`slope` for negative x."""
    return PiecewiseLinear("leaky-relu", 1.0, slope)


def shaped_relu(
    c_plus: float = 0.0, c_minus: float = -1.0, width: float = 100.0, power: float = 0.5
) -> PiecewiseLinear:
    """ReLU bent towards the identity, more so the wider the network: slopes 1 + c width^-power, S3
    (2.5)."""
    width = real(width, "width", above=0)
    return PiecewiseLinear("shaped-relu", 1 + c_plus / width**power, 1 + c_minus / width**power)
