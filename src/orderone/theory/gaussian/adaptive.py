"""E f(x), x ~ N(0, q), for any function, with an error estimate: panels are halved until nothing
changes.

A panel is done when its two halves agree with it. What they still differ by at the end, summed over
all panels, is the estimate, together with rounding: an overlooked kink or jump is found, or shows.
Where f grows without bound it is integrated by `singular`; if E abs(f) is infinite there, or
because f outgrows the density, value and error are.
"""

from typing import NamedTuple

import numpy as np

from orderone.core import checks
from orderone.core.arrays import as_numpy, together
from orderone.core.inputs import ArrayLike, Function
from orderone.core.real_arrays import finite
from orderone.theory.gaussian.average import NEGLIGIBLE, Values
from orderone.theory.gaussian.growing import weighed
from orderone.theory.gaussian.panels import FARTHEST, REACH, density, doubling, legendre
from orderone.theory.gaussian.piecewise import resolve
from orderone.theory.gaussian.readable import readable
from orderone.theory.gaussian.singular import Blunt, Tip, ends, point_masses, tips

ORDER = 16
START = 1024  # panels, at least: features of a thousandth of a standard deviation are seen
HALVINGS = 60
LEAST_REACH = 8.0  # within which kinks are looked for
MOST_PANELS = 2**14
RIGHT = 1e-15
ROUNDING = 1e-15  # of the average of abs(f)


class Expectation(NamedTuple):
    """An average, and an estimate of its error."""

    value: np.ndarray
    error: np.ndarray


def expect(f: Function, variance: ArrayLike = 1.0, kinks: ArrayLike = ()) -> Expectation:
    """E f(x) for x ~ N(0, variance), and an error estimate. `kinks` are where f or its slope jumps,
    if it is known."""
    xp, lengths = together(variance=variance)
    q = as_numpy(checks.variance(xp, lengths, "variance"))
    values = readable(f, "f")
    at = kinks_of(kinks)
    found = np.array([expect_at(values, float(np.sqrt(each)), at) for each in q.ravel()])
    return Expectation(found[:, 0].reshape(q.shape)[()], found[:, 1].reshape(q.shape)[()])


def kinks_of(kinks: ArrayLike) -> np.ndarray:
    """Finite numbers, or none."""
    if np.size(kinks):
        return finite(kinks, "kinks")
    return np.empty(0)


def expect_at(f: Values, root: float, kinks: np.ndarray) -> tuple[float, float]:
    """(value, error); both infinite if E abs(f) is."""
    if root == 0:
        return float(f(np.zeros(1))[0]), 0.0
    kinks, found = _special(f, root, kinks)
    mass = float(point_masses(found, np.array(root)))
    if np.isinf(mass):
        return np.inf, np.inf
    blunt = Blunt(f, found) if found else f
    for line in (_on_line, _on_longer_line):
        value, error, dies_away = line(blunt, root, kinks)
        if np.isfinite(value) and dies_away:
            return value + mass, error + sum(
                float(tip.error * density(tip.at / root)) / root for tip in found
            )
    return np.inf, np.inf


def _special(f: Values, root: float, kinks: np.ndarray) -> tuple[np.ndarray, tuple[Tip, ...]]:
    """Kinks, those too that are found, and singular points."""
    pieces = resolve(f, max(REACH * root, LEAST_REACH), tuple(map(float, kinks)))
    if pieces is None:
        return kinks, ()
    found = tips(f, pieces.singular)
    return np.concatenate([pieces.kinks, ends(found)]), found


def _on_line(f: Values, root: float, kinks: np.ndarray) -> tuple[float, float, bool]:
    """Value, error, and whether nothing is missed beyond."""
    with np.errstate(all="ignore"):
        value, error, size = _halved(lambda z: f(root * z) * density(z), root, kinks, REACH)
        edge = np.abs(f(root * np.array([-REACH, REACH]))).max() * density(REACH)
    return value, error, bool(edge <= NEGLIGIBLE * size)


def _on_longer_line(f: Values, root: float, kinks: np.ndarray) -> tuple[float, float, bool]:
    with np.errstate(all="ignore"):
        value, error, size = _halved(lambda z: weighed(f, root * z, z)[0], root, kinks, FARTHEST)
    z = np.linspace(-FARTHEST, FARTHEST, 2**14)
    return value, error, bool(weighed(f, root * z, z)[1] <= NEGLIGIBLE * size)


def _halved(g: Values, root: float, kinks: np.ndarray, reach: float) -> tuple[float, float, float]:
    """Value, error, and the integral of abs(g)."""
    points = np.concatenate([kinks, doubling(reach * root, 0.25)]) / root
    cuts = np.unique(
        np.clip(np.concatenate([points, np.linspace(-reach, reach, START + 1)]), -reach, reach)
    )
    low = cuts[:-1]
    high = cuts[1:]
    whole, size = _panels(g, low, high)
    value = error = left = 0.0
    total = size.sum()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        sides = np.concatenate([low, middle]), np.concatenate([middle, high])
        halves = _panels(g, *sides)[0]
        both = halves.reshape(2, -1).sum(0)
        apart = np.abs(whole - both)
        done = ~(apart > RIGHT * total) | (middle <= low) | (middle >= high)
        value = value + both[done].sum()
        error = error + apart[done].sum()
        left = apart[~done].sum()
        low, high, whole = (x[np.tile(~done, 2)] for x in (*sides, halves))
        if not len(low) or len(low) > MOST_PANELS:
            break
    return value + whole.sum(), error + left + ROUNDING * total, total


def _panels(g: Values, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The integrals over panels of g and of abs(g)."""
    nodes, weights = legendre(ORDER)
    terms = g(low[:, None] + (high - low)[:, None] * nodes) * weights * (high - low)[:, None]
    return terms.sum(-1), np.abs(terms).sum(-1)
