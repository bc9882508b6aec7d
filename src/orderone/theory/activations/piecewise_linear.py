"""Activations with one slope on each side of zero: linear, (leaky, shaped) ReLU, absolute value.

    phi(x) = right max(x, 0) + left min(x, 0) = A x + B abs(x)
    A      = (right + left) / 2
    B      = (right - left) / 2

    E phi(x) phi(y)   = sqrt(q1 q2) [A^2 c + B^2 K(c)]
    E phi'(x) phi'(y) = A^2 + B^2 (1 - 2 t / pi)
    K(c)              = c + (2 / pi) (sin t - t cos t),   c = cos t

K is the arc-cosine kernel of order one (Cho & Saul 2009) for the absolute value; S3 (B.4) is the
same for ReLU. The maps scale with the lengths, so the correlation never depends on them. The slopes
of shaped ReLU are 1 + c_plus and 1 + c_minus over a power of the width, S3 (2.5).

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

import math
from dataclasses import dataclass
from types import ModuleType

from orderone.core.arrays import plain, together
from orderone.core.inputs import Array
from orderone.core.reals import real
from orderone.theory.activations.angle import angle, segment
from orderone.theory.activations.base import Activation


@dataclass(frozen=True)
class PiecewiseLinear(Activation):
    """Activation phi(x) = right x for x > 0, left x for x < 0."""

    right: float
    left: float

    @property
    def odd(self) -> float:
        """Return A, the slope of the odd part."""
        return (self.right + self.left) / 2

    @property
    def even(self) -> float:
        """Return B, the slope of the even part."""
        return (self.right - self.left) / 2

    @property
    def slope(self) -> float:
        """Return E phi(x)^2 / q, the same for every q."""
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

    def _mean(self, q: Array, xp: ModuleType) -> Array:
        return self.even * math.sqrt(2 / math.pi) * xp.sqrt(q)

    def _second_moment(self, q: Array, xp: ModuleType) -> Array:
        return self.slope * q

    def _derivative_moment(self, q: Array, xp: ModuleType) -> Array:
        return self.slope + 0 * q

    def _pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        kernel = self.slope * (1 - gap) + self._excess(gap, xp)
        return xp.sqrt(q1) * xp.sqrt(q2) * kernel

    def _derivative_pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        if self.even == 0:
            bend = 0 * gap
        else:
            bend = self.even**2 * (2 / math.pi) * angle(gap, xp)
        return self.slope - bend + 0 * q1 + 0 * q2

    def _drop(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        return xp.sqrt(q1) * xp.sqrt(q2) * (self.slope * gap - self._excess(gap, xp))

    def _output_gap(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        if self.slope == 0:
            return gap + 0 * q1 + 0 * q2
        return gap - self._excess(gap, xp) / self.slope + 0 * q1 + 0 * q2

    def of_length(self, q: Array, xp: ModuleType) -> tuple[Array, ...]:
        return ()

    def gap_and_slope(
        self, one: tuple[Array, ...], other: tuple[Array, ...], gap: Array, xp: ModuleType
    ) -> tuple[Array, Array]:
        """Compute both from one angle.

        Rounding of a gap is at most sqrt(gap) units of the last place, of either sign.
        """
        if self.even == 0 or self.slope == 0:
            return gap, xp.ones_like(gap)
        weight = 2 / math.pi * self.even**2 / self.slope
        c = 1 - gap
        sine = xp.sqrt(xp.abs(gap * (2 - gap)))
        theta = xp.atan2(sine, c)
        theta *= weight  # in place: twice as fast, because the arrays stay in the cache
        sine *= weight
        c *= theta
        sine -= c
        return gap - sine, 1 - theta

    def _excess(self, gap: Array, xp: ModuleType) -> Array:
        """Return B^2 (K(c) - c)."""
        if self.even == 0:
            return 0 * gap
        return self.even**2 * (2 / math.pi) * segment(gap, xp)


LINEAR = PiecewiseLinear("linear", 1.0, 1.0)
RELU = PiecewiseLinear("relu", 1.0, 0.0)
ABS = PiecewiseLinear("abs", 1.0, -1.0)


def leaky_relu(slope: float = 0.01) -> PiecewiseLinear:
    """Return leaky ReLU, with `slope` for negative x."""
    return PiecewiseLinear("leaky-relu", 1.0, slope)


def shaped_relu(
    c_plus: float = 0.0, c_minus: float = -1.0, width: float = 100.0, power: float = 0.5
) -> PiecewiseLinear:
    """Return a ReLU that tends to the identity as the width grows: S3 (2.5).

    Its slopes are 1 + c_plus width^-power on the right, 1 + c_minus width^-power on the left.
    """
    width = real(width, "width", above=0)
    right = 1 + c_plus / width**power
    left = 1 + c_minus / width**power
    return PiecewiseLinear("shaped-relu", right, left)
