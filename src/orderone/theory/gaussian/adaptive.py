"""E f(x) for x ~ N(0, q) and any function f, with an error estimate.

Panels are halved until nothing changes: a panel is done when the sum of its halves agrees with it.
The error estimate is the sum of the remaining differences over all panels, plus rounding. An
unknown kink or jump is therefore resolved, or increases the estimate. Near points where f grows
without bound, `singular` integrates it. Value and error are infinite if E abs(f) is: because f has
no integral at such a point, or because it grows faster than the density falls.
"""

from typing import NamedTuple

import numpy as np

from orderone.core import checks
from orderone.core.arrays import as_numpy, together
from orderone.core.inputs import ArrayLike, Function
from orderone.core.real_arrays import finite
from orderone.theory.gaussian.average import NEGLIGIBLE
from orderone.theory.gaussian.functions import Values
from orderone.theory.gaussian.growing import times_density
from orderone.theory.gaussian.narrow import narrow_features
from orderone.theory.gaussian.panels import FARTHEST, REACH, density, doubling, legendre
from orderone.theory.gaussian.piecewise import resolve
from orderone.theory.gaussian.readable import readable
from orderone.theory.gaussian.singular import Blunt, Tip, ends, point_masses, tips

ORDER = 16
START = 1024  # fewest panels: they resolve features of a thousandth of a standard deviation
NARROW = 0.02  # pieces narrower than this, in standard deviations, are panels of their own
HALVINGS = 60
LEAST_REACH = 8.0  # the search for kinks goes at least this far from zero
MOST_PANELS = 2**14
RIGHT = 1e-15  # a panel is done if its halves differ by less than this part of the integral
ROUNDING = 1e-15  # rounding relative to the average of abs(f)


class Expectation(NamedTuple):
    """Average and an estimate of its error."""

    value: np.ndarray
    error: np.ndarray


def expect(f: Function, variance: ArrayLike = 1.0, kinks: ArrayLike = ()) -> Expectation:
    """Return E f(x) for x ~ N(0, variance), and an error estimate.

    Bumps of f are found if they are wider than 2^-15 max(1, abs(x)), up to abs(x) = 16, and wider
    than abs(x) / 512 beyond; 2^-11 instead of 2^-15 for functions of single numbers. `kinks` are
    points inside narrower ones, or points where f or its slope jumps, as far as they are known.
    """
    xp, lengths = together(variance=variance)
    q = as_numpy(checks.variance(xp, lengths, "variance"))
    values = readable(f, "f")
    known_kinks = with_features(kinks_of(kinks), values)
    results = np.array([expect_at(values, float(np.sqrt(each)), known_kinks) for each in q.ravel()])
    value = results[:, 0].reshape(q.shape)
    error = results[:, 1].reshape(q.shape)
    return Expectation(value[()], error[()])


def kinks_of(kinks: ArrayLike) -> np.ndarray:
    """Return finite numbers; an empty array if there are none."""
    if np.size(kinks):
        return finite(kinks, "kinks")
    return np.empty(0)


def with_features(kinks: np.ndarray, *functions: Values) -> np.ndarray:
    """Return the kinks, and points inside narrow features of the functions."""
    points = [kinks]
    for f in functions:
        points.append(np.array(narrow_features(f, tuple(map(float, kinks))) or ()))
    return np.unique(np.concatenate(points))


def expect_at(f: Values, root: float, kinks: np.ndarray) -> tuple[float, float]:
    """Return (value, error) of E f(root z); both are infinite if E abs(f) is."""
    if root == 0:
        return float(f(np.zeros(1))[0]), 0.0
    kinks, singular_tips = _special_points(f, root, kinks)
    mass = float(point_masses(singular_tips, np.array(root)))
    if np.isinf(mass):
        return np.inf, np.inf
    blunt = Blunt(f, singular_tips) if singular_tips else f
    for integrate in (_on_line, _on_longer_line):
        value, error, is_complete = integrate(blunt, root, kinks)
        if np.isfinite(value) and is_complete:
            tip_error = sum(
                float(tip.error * density(tip.at / root)) / root for tip in singular_tips
            )
            return value + mass, error + tip_error
    return np.inf, np.inf


def _special_points(
    f: Values, root: float, kinks: np.ndarray
) -> tuple[np.ndarray, tuple[Tip, ...]]:
    """Return all kinks, known and detected, and the singular points."""
    pieces = resolve(f, max(REACH * root, LEAST_REACH), tuple(map(float, kinks)))
    if pieces is None:
        return kinks, ()
    singular_tips = tips(f, pieces.singular)
    narrow = np.diff(pieces.ends) < NARROW * root
    beside = pieces.ends[np.append(narrow, False) | np.append(False, narrow)]
    return np.concatenate([pieces.kinks, beside, ends(singular_tips)]), singular_tips


def _on_line(f: Values, root: float, kinks: np.ndarray) -> tuple[float, float, bool]:
    """Return value, error, and whether the integrand is negligible beyond the line."""
    with np.errstate(all="ignore"):
        value, error, size = _halved(lambda z: f(root * z) * density(z), root, kinks, REACH)
        edge = np.abs(f(root * np.array([-REACH, REACH]))).max() * density(REACH)
    return value, error, bool(edge <= NEGLIGIBLE * size)


def _on_longer_line(f: Values, root: float, kinks: np.ndarray) -> tuple[float, float, bool]:
    with np.errstate(all="ignore"):
        value, error, size = _halved(
            lambda z: times_density(f, root * z, z)[0], root, kinks, FARTHEST
        )
    z = np.linspace(-FARTHEST, FARTHEST, 2**14)
    return value, error, bool(times_density(f, root * z, z)[1] <= NEGLIGIBLE * size)


def _halved(g: Values, root: float, kinks: np.ndarray, reach: float) -> tuple[float, float, float]:
    """Return the integral of g over [-reach, reach], its error, and the integral of abs(g)."""
    points = np.concatenate([kinks, doubling(reach * root, 0.25)]) / root
    every_point = np.concatenate([points, np.linspace(-reach, reach, START + 1)])
    cuts = np.unique(np.clip(every_point, -reach, reach))
    low = cuts[:-1]
    high = cuts[1:]
    whole, size = _panels(g, low, high)
    value = error = left = 0.0
    total = size.sum()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        half_low = np.concatenate([low, middle])
        half_high = np.concatenate([middle, high])
        halves = _panels(g, half_low, half_high)[0]
        both = halves.reshape(2, -1).sum(0)
        difference = np.abs(whole - both)
        done = ~(difference > RIGHT * total) | (middle <= low) | (middle >= high)
        value = value + both[done].sum()
        error = error + difference[done].sum()
        left = difference[~done].sum()
        open_halves = np.tile(~done, 2)
        low = half_low[open_halves]
        high = half_high[open_halves]
        whole = halves[open_halves]
        if not len(low) or len(low) > MOST_PANELS:
            break
    return value + whole.sum(), error + left + ROUNDING * total, total


def _panels(g: Values, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the integrals of g and of abs(g) over each panel."""
    nodes, weights = legendre(ORDER)
    terms = g(low[:, None] + (high - low)[:, None] * nodes) * weights * (high - low)[:, None]
    return terms.sum(-1), np.abs(terms).sum(-1)
