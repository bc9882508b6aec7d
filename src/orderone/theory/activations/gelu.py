"""GELU, exact: phi(x) = x Phi(x), Phi the normal distribution function.

With k = c sqrt(q1 q2), s = (1 + q1)(1 + q2), D = s - k^2:

    E phi(x) phi(y)   = k/4 + (k / 2 pi) arcsin(k / sqrt s) + (k^2 + q1 q2 D) / (2 pi s sqrt D)
    E phi'(x) phi'(y) = 1/4 + arcsin(k / sqrt s) / 2 pi + (k / 2 pi sqrt D) [1 + (2 + k^2 / D - q1 q2) / s]

The first for q1 = q2, c = 1 is K/4 + K^2 / (pi (1 + K) sqrt(1 + 2K)) + (K / 2 pi) arcsin(K / (1 + K)), the closed form
listed with the errata of S2. The second is its derivative with respect to k (Price's theorem).
"""

import math
from dataclasses import dataclass
from typing import Any

from orderone.core.arrays import plain, together
from orderone.core.shapes import Array
from orderone.theory.activations.base import Activation
from orderone.theory.activations.erf import arcsin_drop, erf

TWO_PI = 2 * math.pi


@dataclass(frozen=True)
class Gelu(Activation):
    """x Phi(x), with the error function and not its tanh approximation."""

    def __call__(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(x * _normal_cdf(x, xp))

    def derivative(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(_normal_cdf(x, xp) + x * xp.exp(-x * x / 2) / math.sqrt(TWO_PI))

    def _mean(self, q: Any, xp: Any) -> Any:
        return q / xp.sqrt(TWO_PI * (1 + q))

    def _second_moment(self, q: Any, xp: Any) -> Any:
        return self._pair(q, q, 0 * q, xp)

    def _derivative_moment(self, q: Any, xp: Any) -> Any:
        return self._derivative_pair(q, q, 0 * q, xp)

    def _pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        k, s, D = _sides(q1, q2, gap, xp)
        bend = (k * (k / s) + (q1 * q2 / s) * D) / (TWO_PI * xp.sqrt(D))
        return k * (0.25 + xp.atan2(k, xp.sqrt(D)) / TWO_PI) + bend

    def _derivative_pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        k, s, D = _sides(q1, q2, gap, xp)
        # 1 - q1 q2 / s = (1 + q1 + q2) / s, so that nothing is left of the cancellation at large q
        bend = k * (1 + q1 + q2 + 2 + k * (k / D)) / (TWO_PI * s * xp.sqrt(D))
        return 0.25 + xp.atan2(k, xp.sqrt(D)) / TWO_PI + bend

    def _drop(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        one, s, D1 = _sides(q1, q2, 0 * gap, xp)
        k, _, D = _sides(q1, q2, gap, xp)
        root1, root = xp.sqrt(D1), xp.sqrt(D)
        w = one * gap * (one * (2 - gap))  # D - D1 = one^2 - k^2
        angles = gap * one * xp.atan2(one, root1) + k * arcsin_drop(one / xp.sqrt(s), root1 / xp.sqrt(s), gap, xp)
        bends = w / root1 + w * (k * (k / (root * root1)) - one * one) / (root + root1)
        return gap * one / 4 + (angles + bends / s) / TWO_PI


def _sides(q1: Any, q2: Any, gap: Any, xp: Any) -> tuple[Any, Any, Any]:
    """k, s and D; D as a sum of positive terms."""
    one = xp.sqrt(q1) * xp.sqrt(q2)
    return one * (1 - gap), (1 + q1) * (1 + q2), 1 + q1 + q2 + one * gap * (one * (2 - gap))


def _normal_cdf(x: Any, xp: Any) -> Any:
    return (1 + erf(x / math.sqrt(2), xp)) / 2


GELU = Gelu("gelu")
