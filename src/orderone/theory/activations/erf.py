"""Error function, the sigmoidal activation with closed forms (Williams 1997).

    E erf(x) erf(y)   = (2 / pi) arcsin(k c),    k = 2 sqrt(q1 q2) / sqrt((1 + 2 q1)(1 + 2 q2))
    E erf'(x) erf'(y) = (4 / pi) / sqrt((1 + 2 q1)(1 + 2 q2) - 4 q1 q2 c^2)

The activation is erf(x) itself, not erf(sqrt(pi) x / 2) with slope one (erratum S1.8).

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

import math
from dataclasses import dataclass
from types import ModuleType

from scipy import special

from orderone.core.arrays import plain, together
from orderone.core.inputs import Array
from orderone.theory.activations.base import Activation


def erf(x: Array, xp: ModuleType) -> Array:
    """Return erf(x), from the library of the array if it has one."""
    if hasattr(xp, "erf"):
        return xp.erf(x)
    return special.erf(x)


def arcsin_drop(k: Array, cosine: Array, gap: Array, xp: ModuleType) -> Array:
    """Return arcsin(k) - arcsin(k (1 - gap)) without cancellation; `cosine` is sqrt(1 - k^2)."""
    c = 1 - gap
    other = xp.sqrt(cosine**2 + k**2 * gap * (2 - gap))  # sqrt(1 - (k c)^2)
    sine = k * gap * (2 - gap) / xp.where(c > 0, other + c * cosine, 1 + 0 * k)
    close = xp.atan2(sine, other * cosine + k**2 * c)
    far = xp.atan2(k, cosine) - xp.atan2(k * c, other)
    return xp.where(c > 0, close, far)


@dataclass(frozen=True)
class Erf(Activation):
    """Activation phi(x) = erf(x)."""

    def __call__(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(erf(x, xp))

    def derivative(self, x: Array) -> Array:
        xp, x = together(x=x)
        return plain(2 / math.sqrt(math.pi) * xp.exp(-x * x))

    def _mean(self, q: Array, xp: ModuleType) -> Array:
        return 0 * q

    def _second_moment(self, q: Array, xp: ModuleType) -> Array:
        return (2 / math.pi) * xp.atan2(q, xp.sqrt(0.25 + q))

    def _derivative_moment(self, q: Array, xp: ModuleType) -> Array:
        return (2 / math.pi) / xp.sqrt(0.25 + q)

    def _pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        k, cosine = _sides(q1, q2, xp)
        other = xp.sqrt(cosine**2 + k**2 * gap * (2 - gap))
        return (2 / math.pi) * xp.atan2(k * (1 - gap), other)

    def _derivative_pair(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        k, cosine = _sides(q1, q2, xp)
        other = xp.sqrt(cosine**2 + k**2 * gap * (2 - gap))
        return (2 / math.pi) / (xp.sqrt(0.5 + q1) * xp.sqrt(0.5 + q2) * other)

    def _drop(self, q1: Array, q2: Array, gap: Array, xp: ModuleType) -> Array:
        k, cosine = _sides(q1, q2, xp)
        return (2 / math.pi) * arcsin_drop(k, cosine, gap, xp)

    def of_length(self, q: Array, xp: ModuleType) -> tuple[Array, ...]:
        """Return the root of k, and one over the root of arcsin k, for pairs of this length."""
        return xp.sqrt(q / (0.5 + q)), xp.sqrt((2 / math.pi) / self._second_moment(q, xp))

    def gap_and_slope(
        self, one: tuple[Array, ...], other: tuple[Array, ...], gap: Array, xp: ModuleType
    ) -> tuple[Array, Array]:
        """Return the new gap and the slope.

        For one common length the gap loses no digits; otherwise cancellation after arcsin loses
        some.
        """
        k = one[0] * other[0]
        scale = one[1] * other[1]
        sine = k * (1 - gap)
        cosine = xp.sqrt(1 - sine * sine)
        if one is other:
            # tan((a - b) / 2) = (sin a - sin b) / (cos a + cos b)
            new = xp.atan(k * gap / (xp.sqrt(1 - k * k) + cosine))
            new *= 2 * scale
        else:
            new = xp.asin(sine)
            new *= scale
            new = xp.abs(1 - new)
        return new, (scale * k) / cosine


def _sides(q1: Array, q2: Array, xp: ModuleType) -> tuple[Array, Array]:
    """Return k and sqrt(1 - k^2)."""
    share1 = q1 / (0.5 + q1)
    share2 = q2 / (0.5 + q2)
    k = xp.sqrt(share1) * xp.sqrt(share2)
    cosine = xp.sqrt(0.5 / (0.5 + q1) + share1 * (0.5 / (0.5 + q2)))
    return k, cosine


ERF = Erf("erf")
