"""Points at which a function grows without bound, such as those of log, 1/x, or the slope of a
root.

Towards such a point k the distance shrinks by powers of 4. If f(x) ~ (x - k)^p there, the integrals
over those panels are a geometric series of ratio r = 4^-(1 + p), whose end is known:

    integral from k to k + h = P r / (1 - r),        P = integral from k + h to k + 4 h

unless r >= 1: then there is no integral. The density of a Gaussian does not change over so small a
distance h, so what lies within it is a point mass, found once for all variances. The rest of the
line is integrated without that part.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from orderone.core.inputs import Array
from orderone.theory.gaussian.panels import density, segments

SHRINK = 4.0
ORDER = 16
NEAREST = 2.0**-100  # to zero
RELATIVE = 2.0**-26  # to any other point: half of the digits of x - k are left there
FINER = 2.0**-40
WEAK = (
    0.4  # what grows as slowly as a logarithm leaves so little there that a few digits are enough
)
ENDLESS = 0.985  # ratios from here on are those of x^-1 or worse

Values: TypeAlias = Callable[[np.ndarray], np.ndarray]


class Tip(NamedTuple):
    """What is left out around `at`."""

    at: float
    width: float
    mass: float  # inf if there is no integral
    error: float


@dataclass(frozen=True)
class Blunt:
    """f without its tips."""

    f: Values
    tips: tuple[Tip, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        values = self.f(x)
        for tip in self.tips:
            values = np.where(np.abs(x - tip.at) < tip.width, 0.0, values)
        return values


def tips(f: Values, points: tuple[float, ...], nearest: float = NEAREST) -> tuple[Tip, ...]:
    """One for each of the points; `nearest` is how close to zero f is known."""
    return tuple(_tip(f, at, nearest) for at in points)


def point_masses(found: tuple[Tip, ...], root: Array) -> Array:
    """What the tips add to E f(root z): inf if one of them has no integral."""
    total = np.zeros(np.shape(root))
    for tip in found:
        if np.isinf(tip.mass):
            return np.full(np.shape(root), np.inf)
        total = total + tip.mass * density(tip.at / root) / root
    return total


def ends(found: tuple[Tip, ...]) -> np.ndarray:
    """Where the tips begin, and panels that shrink towards them."""
    reach = [int(np.log2(max(abs(tip.at), 1.0) / tip.width)) // 2 for tip in found]
    shrinking = [tip.width * SHRINK ** np.arange(n) for tip, n in zip(found, reach, strict=True)]
    sides = [
        tip.at + sign * steps
        for tip, steps in zip(found, shrinking, strict=True)
        for sign in (-1, 1)
    ]
    return np.concatenate([*sides, np.empty(0)])


def _tip(f: Values, at: float, nearest: float) -> Tip:
    width = RELATIVE * abs(at) if at else nearest
    with np.errstate(all="ignore"):
        if at and all(_end(f, at, sign * width).ratio < WEAK for sign in (-1, 1)):
            width = FINER * abs(at)
        left, right = (_end(f, at, sign * width) for sign in (-1, 1))
        mass = left.mass + right.mass
        return Tip(at, width, mass if np.isfinite(mass) else np.inf, left.error + right.error)


class _End(NamedTuple):
    mass: float  # the integral from a point to its distance, counted positive
    error: float
    ratio: float


def _end(f: Values, at: float, width: float) -> _End:
    x, weights = segments(at + width * SHRINK ** np.arange(4.0), ORDER)
    inner, middle, outer = (f(x) * np.abs(weights)).reshape(3, -1).sum(-1)
    if inner == 0:
        return _End(0.0, 0.0, 0.0)
    ratio = inner / middle
    before = middle / outer
    if not ratio < ENDLESS:
        return _End(np.inf, np.inf, ratio)
    noise = abs(ratio - before) + np.finfo(float).eps * abs(at / width)
    return _End(inner * ratio / (1 - ratio), 4 * abs(inner) * noise / (1 - ratio) ** 2, ratio)
