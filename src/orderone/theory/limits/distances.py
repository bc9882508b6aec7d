"""How far two samples of a number are apart, with intervals.

    KS = sup |F - G|,   W1 = int |F - G| dx,   energy = (2 int (F - G)^2 dx)^{1/2}

F and G are the empirical distribution functions. Intervals are from the bootstrap: both samples drawn again with
replacement. Resampling adds noise, which pushes every distance up, so the interval is the basic one, reflected at the
estimate, and cut at zero. Where laws are nearly equal even that may lie below the estimate: it is then extended to it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orderone.core.covariances import numpy
from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.core.given import Array, Count, Name, Number
from orderone.core.real_arrays import finite
from orderone.core.reals import real


@dataclass(frozen=True)
class Distance:
    name: str
    value: float
    low: float
    high: float

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


def ks(x: Array, y: Array) -> float:
    """Kolmogorov-Smirnov."""
    return _ks(*_samples(x, y))


def wasserstein(x: Array, y: Array) -> float:
    """Wasserstein-1, in the units of the samples."""
    return _wasserstein(*_samples(x, y))


def energy(x: Array, y: Array) -> float:
    """Energy distance: the root of 2 E d(X, Y) - E d(X, X') - E d(Y, Y'), d the distance of numbers."""
    return _energy(*_samples(x, y))


def distance(
    x: Array, y: Array, kind: Name = "ks", resamples: Count = 200, confidence: Number = 0.95, seed: Count = 0
) -> Distance:
    """`kind` is ks, wasserstein or energy."""
    x, y = _samples(x, y)
    name = one_of(kind, DISTANCES, "distance")
    measure, level = DISTANCES[name], real(confidence, "confidence", above=0)
    if level >= 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence!r}")
    rng, value = np.random.default_rng(count(seed, "seed", least=0)), measure(x, y)
    again = [
        measure(np.sort(rng.choice(x, x.size)), np.sort(rng.choice(y, y.size)))
        for _ in range(count(resamples, "resamples"))
    ]
    low, high = np.quantile(again, [(1 - level) / 2, (1 + level) / 2])
    return Distance(name, value, min(value, max(0.0, 2 * value - float(high))), max(value, 2 * value - float(low)))


def _ks(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(_difference(x, y)[0]).max())


def _wasserstein(x: np.ndarray, y: np.ndarray) -> float:
    difference, width = _difference(x, y)
    return float(np.abs(difference[:-1]) @ width)


def _energy(x: np.ndarray, y: np.ndarray) -> float:
    difference, width = _difference(x, y)
    return float(np.sqrt(2 * difference[:-1] ** 2 @ width))


def _difference(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """F - G at every point of sorted samples, and the lengths between points."""
    points = np.sort(np.concatenate([x, y]), kind="stable")
    F = np.searchsorted(x, points, side="right") / x.size
    G = np.searchsorted(y, points, side="right") / y.size
    return F - G, np.diff(points)


def _samples(x: Array, y: Array) -> tuple[np.ndarray, np.ndarray]:
    return np.sort(finite(numpy(x), "x")), np.sort(finite(numpy(y), "y"))


DISTANCES: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "ks": _ks,
    "wasserstein": _wasserstein,
    "energy": _energy,
}
