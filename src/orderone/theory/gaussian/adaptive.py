"""E f(x), x ~ N(0, q), for any function, with an error estimate: panels are halved until nothing changes.

A panel is done when its two halves agree with it. What they still differ by at the end, summed over all panels, is the
estimate, together with rounding: an overlooked kink or jump is found, or shows.
"""

from typing import NamedTuple

import numpy as np

from orderone.core import checks
from orderone.core.arrays import as_numpy, together
from orderone.core.given import ArrayLike, Function
from orderone.core.real_arrays import finite
from orderone.theory.gaussian.average import NEGLIGIBLE, Values
from orderone.theory.gaussian.panels import FAR, REACH, density, doubling, legendre
from orderone.theory.gaussian.readable import readable

ORDER = 16
START = 1024  # panels, at least: features of a thousandth of a standard deviation are seen
HALVINGS = 60
MOST_PANELS = 2**14
RIGHT, ROUNDING = 1e-15, 1e-15  # of the average of abs(f)


class Expectation(NamedTuple):
    """An average, and an estimate of its error."""

    value: np.ndarray
    error: np.ndarray


def expect(f: Function, variance: ArrayLike = 1.0, kinks: ArrayLike = ()) -> Expectation:
    """E f(x) for x ~ N(0, variance), and an error estimate. `kinks` are where f or its slope jumps, if it is known."""
    xp, lengths = together(variance=variance)
    q = as_numpy(checks.variance(xp, lengths, "variance"))
    values, at = readable(f, "f"), kinks_of(kinks)
    found = np.array([_adapted(values, float(np.sqrt(each)), at) for each in q.ravel()])
    return Expectation(found[:, 0].reshape(q.shape)[()], found[:, 1].reshape(q.shape)[()])


def kinks_of(kinks: ArrayLike) -> np.ndarray:
    """Finite numbers, or none."""
    return finite(kinks, "kinks") if np.size(kinks) else np.empty(0)


def _adapted(f: Values, root: float, kinks: np.ndarray) -> tuple[float, float]:
    """(value, error); both infinite if the integrand has not died away where the density leaves the range of a double."""
    if root == 0:
        return float(f(np.zeros(1))[0]), 0.0
    value = error = np.inf
    for reach in (REACH, FAR):
        with np.errstate(all="ignore"):
            value, error, size = _on_line(f, root, kinks, reach)
            edge = np.abs(f(root * np.array([-reach, reach]))).max() * density(reach)
        if np.isfinite(value) and edge <= NEGLIGIBLE * size:
            return value, error
    return np.inf, np.inf


def _on_line(f: Values, root: float, kinks: np.ndarray, reach: float) -> tuple[float, float, float]:
    """Value, error, and the average of abs(f)."""
    points = np.concatenate([kinks, doubling(reach * root, 0.25)]) / root
    cuts = np.unique(np.clip(np.concatenate([points, np.linspace(-reach, reach, START + 1)]), -reach, reach))
    low, high = cuts[:-1], cuts[1:]
    whole, size = _panels(f, root, low, high)
    value = error = left = 0.0
    total = size.sum()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        ends = np.concatenate([low, middle]), np.concatenate([middle, high])
        halves = _panels(f, root, *ends)[0]
        both = halves.reshape(2, -1).sum(0)
        apart = np.abs(whole - both)
        done = ~(apart > RIGHT * total) | (middle <= low) | (middle >= high)
        value, error, left = value + both[done].sum(), error + apart[done].sum(), apart[~done].sum()
        low, high, whole = (x[np.tile(~done, 2)] for x in (*ends, halves))
        if not len(low) or len(low) > MOST_PANELS:
            break
    return value + whole.sum(), error + left + ROUNDING * total, total


def _panels(f: Values, root: float, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The integrals over panels of f and of abs(f), with the density."""
    nodes, weights = legendre(ORDER)
    z = low[:, None] + (high - low)[:, None] * nodes
    terms = f(root * z) * density(z) * weights * (high - low)[:, None]
    return terms.sum(-1), np.abs(terms).sum(-1)
