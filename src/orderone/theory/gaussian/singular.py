"""Singular points, at which a function grows without bound: log, 1/x, or the slope of a root.

Take panels towards such a point k at distances that shrink by powers of 4. If
f(x) ~ (x - k)^p there, the integrals over the panels are a geometric series of ratio
r = 4^-(1 + p), whose sum is known:

    integral from k to k + h = P r / (1 - r)
    P                        = integral from k + h to k + 4 h

If r >= 1 and (x - k) f(x) does not vanish towards k, there is no integral. If f is no power there,
because it oscillates or because it is steep but bounded, r differs from panel to panel; then more
panels are summed instead. The density of a Gaussian does not change over so small a distance
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
POWER = 0.1  # largest difference of the ratios of a power, or of a power times a logarithm
CLOSEST = 64  # doubles between a singular point and the closest argument of f
CLOSER = 2.0**-20  # the same distance at zero, relative to the width of the tip
AROUND = np.linspace(1.0, 2.0, 8)  # distances at which the size of f is taken


class Tip(NamedTuple):
    """Part of a function around a singular point."""

    at: float
    width: float  # half of its width
    mass: float  # inf if there is no integral
    error: float
    is_power: bool = True  # whether f behaves like a power of the distance on both sides


@dataclass(frozen=True)
class Blunt:
    """Function f with zeros in place of its tips."""

    f: Values
    tips: tuple[Tip, ...]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        at = np.array([tip.at for tip in self.tips])
        width = np.array([tip.width for tip in self.tips])
        nearest = np.searchsorted((at[1:] + at[:-1]) / 2, x)
        return np.where(np.abs(x - at[nearest]) < width[nearest], 0.0, self.f(x))


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
        return Tip(at, width, mass, left.error + right.error, left.is_power and right.is_power)


class _Side(NamedTuple):
    """Side of a tip."""

    mass: float  # the integral from the singular point to the end of the tip
    error: float
    ratio: float  # of the integrals over neighbouring panels
    is_power: bool = True


def _side(f: Values, at: float, width: float) -> _Side:
    """Integrate from `at` to `at + width`, which may be negative."""
    x, weights = segments(at + width * SHRINK ** np.arange(4.0), ORDER)
    inner, middle, outer = (f(x) * np.abs(weights)).reshape(3, -1).sum(-1)
    if inner == 0:
        return _Side(0.0, 0.0, 0.0, is_power=False)
    ratio = inner / middle
    before = middle / outer
    if not ratio < DIVERGES and _grows(f, at, width):
        return _Side(np.inf, np.inf, ratio)
    if not abs(ratio - before) <= POWER * abs(ratio) or not ratio < DIVERGES:
        return _summed(f, at, width)
    noise = abs(ratio - before) + np.finfo(float).eps * abs(at / width)
    mass = inner * ratio / (1 - ratio)
    error = 4 * abs(inner) * noise / (1 - ratio) ** 2
    return _Side(mass, error, ratio)


def _closest(at: float, width: float) -> float:
    """Return the smallest distance from `at` at which f is taken, with the sign of `width`."""
    if at:
        distance = CLOSEST * np.spacing(abs(at))
    else:
        distance = CLOSER * abs(width)
    return float(np.copysign(distance, width))


def _grows(f: Values, at: float, width: float) -> bool:
    """Return whether (x - at) f(x) does not vanish towards the point, from any distance."""
    closest = _closest(at, width)
    distances = np.append(closest * 2.0 ** np.arange(7), width)
    sizes = np.abs(f(at + distances[:, None] * AROUND)).max(axis=1) * np.abs(distances)
    return not (sizes[0] < 0.75 * sizes[1] or sizes[0] < sizes.max() / 2)


def _summed(f: Values, at: float, width: float) -> _Side:
    """Integrate f that is no power over panels that shrink as far as doubles allow."""
    closest = _closest(at, width)
    panels = int(np.log(width / closest) / np.log(SHRINK))
    ends = at + width * SHRINK ** -np.arange(panels + 1.0)
    totals = []
    for order in (ORDER, ORDER // 2):
        x, weights = segments(ends, order)
        totals.append(float((f(x) * np.abs(weights)).sum()))
    last = abs(ends[-1] - at) * float(np.abs(f(at + closest * AROUND)).max())
    return _Side(totals[0], abs(totals[0] - totals[1]) + last, 0.0, is_power=False)
