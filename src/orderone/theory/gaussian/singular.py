"""Singular points, at which a function grows without bound: log, 1/x, or the slope of a root.

Take panels towards such a point k at distances that shrink by powers of 4. If
f(x) ~ (x - k)^p there, the integrals over the panels are a geometric series of ratio
r = 4^-(1 + p), whose sum is known:

    integral from k to k + h = P r / (1 - r)
    P                        = integral from k + h to k + 4 h

If r >= 1, there is no integral. The density of a Gaussian does not change over so small a distance
h. The integral within it, the "tip" of f, is therefore a point mass, the same for all variances.
The rest of the line is integrated without that part.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from orderone.core.inputs import Array
from orderone.theory.gaussian.functions import Values
from orderone.theory.gaussian.panels import density, segments

SHRINK = 4.0
ORDER = 16
NEAREST = 2.0**-100  # half width of a tip at zero
RELATIVE = 2.0**-26  # relative half width at other points, where x - k has half of its digits
FINER = 2.0**-40  # the same for f with a weak singularity
WEAK = 0.4  # below this ratio f grows like a logarithm, and few digits of its tip are enough
DIVERGES = 0.985  # above this ratio f grows as fast as x^-1 or faster


class Tip(NamedTuple):
    """Part of a function around a singular point."""

    at: float
    width: float  # half of its width
    mass: float  # inf if there is no integral
    error: float


@dataclass(frozen=True)
class Blunt:
    """Function f with zeros in place of its tips."""

    f: Values
    tips: tuple[Tip, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        values = self.f(x)
        for tip in self.tips:
            values = np.where(np.abs(x - tip.at) < tip.width, 0.0, values)
        return values


def tips(f: Values, points: tuple[float, ...], nearest: float = NEAREST) -> tuple[Tip, ...]:
    """Return the tip at each of the points; `nearest` is its half width at zero."""
    return tuple(_tip(f, at, nearest) for at in points)


def point_masses(singular_tips: tuple[Tip, ...], root: Array) -> Array:
    """Return the contribution of the tips to E f(root z): inf if one of them has no integral."""
    total = np.zeros(np.shape(root))
    for tip in singular_tips:
        if np.isinf(tip.mass):
            return np.full(np.shape(root), np.inf)
        total = total + tip.mass * density(tip.at / root) / root
    return total


def ends(singular_tips: tuple[Tip, ...]) -> np.ndarray:
    """Return the ends of the tips, and of panels that shrink towards them."""
    points: list[np.ndarray] = [np.empty(0)]
    for tip in singular_tips:
        panels = int(np.log2(max(abs(tip.at), 1.0) / tip.width)) // 2
        distances = tip.width * SHRINK ** np.arange(panels)
        points.append(tip.at - distances)
        points.append(tip.at + distances)
    return np.concatenate(points)


def _tip(f: Values, at: float, nearest: float) -> Tip:
    width = RELATIVE * abs(at) if at else nearest
    with np.errstate(all="ignore"):
        left = _side(f, at, -width)
        right = _side(f, at, width)
        if at and left.ratio < WEAK and right.ratio < WEAK:
            width = FINER * abs(at)
            left = _side(f, at, -width)
            right = _side(f, at, width)
        mass = left.mass + right.mass
        if not np.isfinite(mass):
            mass = np.inf
        return Tip(at, width, mass, left.error + right.error)


class _Side(NamedTuple):
    """Side of a tip."""

    mass: float  # the integral from the singular point to the end of the tip
    error: float
    ratio: float  # of the integrals over neighbouring panels


def _side(f: Values, at: float, width: float) -> _Side:
    """Integrate from `at` to `at + width`, which may be negative."""
    x, weights = segments(at + width * SHRINK ** np.arange(4.0), ORDER)
    inner, middle, outer = (f(x) * np.abs(weights)).reshape(3, -1).sum(-1)
    if inner == 0:
        return _Side(0.0, 0.0, 0.0)
    ratio = inner / middle
    before = middle / outer
    if not ratio < DIVERGES:
        return _Side(np.inf, np.inf, ratio)
    noise = abs(ratio - before) + np.finfo(float).eps * abs(at / width)
    mass = inner * ratio / (1 - ratio)
    error = 4 * abs(inner) * noise / (1 - ratio) ** 2
    return _Side(mass, error, ratio)
