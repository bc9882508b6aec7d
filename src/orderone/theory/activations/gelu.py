"""GELU, exact: phi(x) = x Phi(x), Phi the normal distribution function.

With k = c sqrt(q1 q2), s = (1 + q1)(1 + q2), D = s - k^2:

    E phi(x) phi(y)   = k/4 + (k / 2 pi) arcsin(k / sqrt s) + (k^2 + q1 q2 D) / (2 pi s sqrt D)
    E phi'(x) phi'(y) = 1/4 + arcsin(k / sqrt s) / 2 pi
                        + (k / 2 pi sqrt D) [1 + (2 + k^2 / D - q1 q2) / s]

For q1 = q2 = K, c = 1, the first is the closed form listed with the errata of S2:

    E phi(x)^2 = K/4 + K^2 / (pi (1 + K) sqrt(1 + 2K)) + (K / 2 pi) arcsin(K / (1 + K))

The second is the derivative of the first with respect to k (Price's theorem).

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

import math
from dataclasses import dataclass
from types import ModuleType

from orderone.core.arrays import plain, together
from orderone.core.inputs import Array
from orderone.theory.activations.base import Activation
from orderone.theory.activations.erf import arcsin_drop, erf

TWO_PI = 2 * math.pi


@dataclass(frozen=True)
class Gelu(Activation):
    """Activation phi(x) = x Phi(x), with the error function and not its tanh approximation."""

    def __call__(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(x * _normal_cdf(x, xp))

    def derivative(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(_normal_cdf(x, xp) + x * xp.exp(-x * x / 2) / math.sqrt(TWO_PI))

    def _mean(self, q: Array, xp: ModuleType) -> Array:
        return xp.sqrt(q / TWO_PI) * xp.sqrt(q / (1 + q))

    def _second_moment(self, q: Array, xp: ModuleType) -> Array:
        return self._pair(q, q, 0 * q, xp)

    def _derivative_moment(self, q: Array, xp: ModuleType) -> Array:
        return self._derivative_pair(q, q, 0 * q, xp)

    def _pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        root_q, root_s, ratio, delta = _sides(q1, q2, gap, xp)
        sine = ratio * (1 - gap)
        cosine = xp.sqrt(delta)
        bend = sine * sine / (root_s * cosine) + ratio * cosine * root_q
        return root_q * (1 - gap) * (0.25 + xp.atan2(sine, cosine) / TWO_PI) + bend / TWO_PI

    def _derivative_pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        _, _, ratio, delta = _sides(q1, q2, gap, xp)
        sine = ratio * (1 - gap)
        cosine = xp.sqrt(delta)
        inverse_s = 1 / (1 + q1) / (1 + q2)
        # 1 - q1 q2 / s as a sum, which does not cancel at large q
        bend = _sides(q1, q2, 0 * gap, xp)[3] + inverse_s * (2 + sine * sine / delta)
        return 0.25 + (xp.atan2(sine, cosine) + sine * bend / cosine) / TWO_PI

    def _drop(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        root_q, root_s, ratio, delta1 = _sides(q1, q2, 0 * gap, xp)
        root1 = xp.sqrt(delta1)
        root = xp.sqrt(_sides(q1, q2, gap, xp)[3])
        sine = ratio * (1 - gap)
        w = ratio * ratio * gap * (2 - gap)  # the difference of the two deltas
        angle_drop = arcsin_drop(ratio, root1, gap, xp)
        angles = gap * root_q * xp.atan2(ratio, root1) + root_q * (1 - gap) * angle_drop
        first = (1 + sine * sine / (root * (root + root1))) / (root_s * root1)
        bends = first - ratio * root_q / (root + root1)
        return gap * root_q / 4 + (angles + w * bends) / TWO_PI


def _sides(q1: Array, q2: Array, gap: Array, xp: ModuleType) -> tuple[Array, Array, Array, Array]:
    """Return sqrt(q1 q2), sqrt(s), their ratio, and delta = D / s.

    delta is a sum of positive terms. Nothing overflows for long signals.
    """
    root_q = xp.sqrt(q1) * xp.sqrt(q2)
    root_s = xp.sqrt(1 + q1) * xp.sqrt(1 + q2)
    ratio = root_q / root_s
    delta = 1 / (1 + q1) + q1 / (1 + q1) / (1 + q2) + ratio * ratio * gap * (2 - gap)
    return root_q, root_s, ratio, delta


def _normal_cdf(x: Array, xp: ModuleType) -> Array:
    return (1 + erf(x / math.sqrt(2), xp)) / 2


GELU = Gelu("gelu")
