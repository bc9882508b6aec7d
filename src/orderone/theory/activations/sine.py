"""Sine, whose averages are those of plane waves: with k = c sqrt(q1 q2),

    E sin x sin y = exp(-(q1 + q2)/2) sinh k
    E cos x cos y = exp(-(q1 + q2)/2) cosh k

written with exp(k - (q1 + q2)/2), which never overflows.
"""

from dataclasses import dataclass
from types import ModuleType

from orderone.core.arrays import plain, together
from orderone.core.inputs import Array
from orderone.theory.activations.base import Activation


@dataclass(frozen=True)
class Sine(Activation):
    """Activation phi(x) = sin(x)."""

    def __call__(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(xp.sin(x))

    def derivative(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(xp.cos(x))

    def _mean(self, q: Array, xp: ModuleType) -> Array:
        return 0 * q

    def _second_moment(self, q: Array, xp: ModuleType) -> Array:
        return -xp.expm1(-q) * (1 + xp.exp(-q)) / 2

    def _derivative_moment(self, q: Array, xp: ModuleType) -> Array:
        return (1 + xp.exp(-q) ** 2) / 2

    def _pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        same, opposite, k = _waves(q1, q2, gap, xp)
        small = xp.exp(-q1 / 2 - q2 / 2) * xp.sinh(xp.clip(k, -1, 1))
        return xp.where(xp.abs(k) < 0.5, small, (same - opposite) / 2)

    def _derivative_pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        same, opposite, _ = _waves(q1, q2, gap, xp)
        return (same + opposite) / 2

    def _drop(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        at_one, _, k = _waves(q1, q2, 0 * gap, xp)
        _, opposite, _ = _waves(q1, q2, gap, xp)
        return -xp.expm1(-k * gap) * (at_one + opposite) / 2


def _waves(q1: Array, q2: Array, gap: Array, xp: ModuleType) -> tuple[Array, Array, Array]:
    """Return exp(k - (q1 + q2)/2), exp(-k - (q1 + q2)/2) and k.

    Exponents are sums of squares, so that equal lengths are exact.
    """
    root = xp.sqrt(q1) * xp.sqrt(q2)
    unequal = (xp.sqrt(q1) - xp.sqrt(q2)) ** 2 / 2
    same = xp.exp(-unequal - root * gap)
    opposite = xp.exp(-unequal / 2 - root * (1 - gap / 2)) ** 2
    return same, opposite, root * (1 - gap)


SIN = Sine("sin")
