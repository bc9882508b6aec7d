"""GELU, exact: phi(x) = x Phi(x), Phi the normal distribution function.

With k = c sqrt(q1 q2), s = (1 + q1)(1 + q2), D = s - k^2:

    E phi(x) phi(y)   = k/4 + (k / 2 pi) arcsin(k / sqrt s) + (k^2 + q1 q2 D) / (2 pi s sqrt D)
    E phi'(x) phi'(y) = 1/4 + arcsin(k / sqrt s) / 2 pi + (k / 2 pi sqrt D) [1 + (2 + k^2 / D - q1
    q2) / s]

The first for q1 = q2, c = 1 is K/4 + K^2 / (pi (1 + K) sqrt(1 + 2K)) + (K / 2 pi) arcsin(K / (1 +
K)), the closed form listed with the errata of S2. The second is its derivative with respect to k
(Price's theorem).
"""

import math
from dataclasses import dataclass
from typing import Any

from orderone.core.arrays import plain, together
from orderone.core.inputs import Array
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
        return xp.sqrt(q / TWO_PI) * xp.sqrt(q / (1 + q))

    def _second_moment(self, q: Any, xp: Any) -> Any:
        return self._pair(q, q, 0 * q, xp)

    def _derivative_moment(self, q: Any, xp: Any) -> Any:
        return self._derivative_pair(q, q, 0 * q, xp)

    def _pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        one, size, reach, delta = _sides(q1, q2, gap, xp)
        sine = reach * (1 - gap)
        cosine = xp.sqrt(delta)
        bend = sine * sine / (size * cosine) + reach * cosine * one
        return one * (1 - gap) * (0.25 + xp.atan2(sine, cosine) / TWO_PI) + bend / TWO_PI

    def _derivative_pair(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        _, _, reach, delta = _sides(q1, q2, gap, xp)
        sine = reach * (1 - gap)
        cosine = xp.sqrt(delta)
        both = 1 / (1 + q1) / (1 + q2)
        # 1 - q1 q2 / s as a sum, so that nothing is left of the cancellation at large q
        bend = _sides(q1, q2, 0 * gap, xp)[3] + both * (2 + sine * sine / delta)
        return 0.25 + (xp.atan2(sine, cosine) + sine * bend / cosine) / TWO_PI

    def _drop(self, q1: Any, q2: Any, gap: Any, xp: Any) -> Any:
        one, size, reach, delta1 = _sides(q1, q2, 0 * gap, xp)
        root1 = xp.sqrt(delta1)
        root = xp.sqrt(_sides(q1, q2, gap, xp)[3])
        sine = reach * (1 - gap)
        w = reach * reach * gap * (2 - gap)  # w is the difference of the two deltas
        angles = gap * one * xp.atan2(reach, root1) + one * (1 - gap) * arcsin_drop(
            reach, root1, gap, xp
        )
        bends = (1 + sine * sine / (root * (root + root1))) / (size * root1) - reach * one / (
            root + root1
        )
        return gap * one / 4 + (angles + w * bends) / TWO_PI


def _sides(q1: Any, q2: Any, gap: Any, xp: Any) -> tuple[Any, Any, Any, Any]:
    """sqrt(q1 q2), sqrt(s), their ratio, and D / s as a sum of positive terms: nothing that
    overflows for long signals."""
    one = xp.sqrt(q1) * xp.sqrt(q2)
    size = xp.sqrt(1 + q1) * xp.sqrt(1 + q2)
    reach = one / size
    return (
        one,
        size,
        reach,
        1 / (1 + q1) + q1 / (1 + q1) / (1 + q2) + reach * reach * gap * (2 - gap),
    )


def _normal_cdf(x: Any, xp: Any) -> Any:
    return (1 + erf(x / math.sqrt(2), xp)) / 2


GELU = Gelu("gelu")
