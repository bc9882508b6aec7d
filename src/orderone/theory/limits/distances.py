"""Distances between the distributions of two samples, with confidence intervals.

    KS = sup |F - G|,   W1 = int |F - G| dx,   energy = (2 int (F - G)^2 dx)^{1/2}

F and G are the empirical distribution functions of the samples. All three are norms of F - G. With
the true distribution functions F_0 and G_0 the triangle inequality says

    | ||F - G|| - ||F_0 - G_0|| |  <=  ||D||,      D = (F - F_0) - (G - G_0)

The bootstrap, which draws both samples again with replacement, estimates the distribution of D for
any two laws, equal ones included. It cannot estimate that of the distance itself: resampling adds
noise, and noise increases distances. The interval is the estimate plus and minus a quantile of
||D||, cut at zero: it contains the true distance at least as often as its confidence level says.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from array_api_compat import is_torch_array

from orderone.core.covariances import numpy
from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import ArrayLike, Count, Name, Number
from orderone.core.real_arrays import finite
from orderone.core.reals import real


@dataclass(frozen=True)
class Distance:
    """Distance of two distributions, estimated from samples, with its confidence interval."""

    name: str
    value: float
    low: float
    high: float

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


def ks(x: ArrayLike, y: ArrayLike) -> float:
    """Return the Kolmogorov-Smirnov distance."""
    return _between("ks", x, y)


def wasserstein(x: ArrayLike, y: ArrayLike) -> float:
    """Return the Wasserstein-1 distance, in the units of the samples."""
    return _between("wasserstein", x, y)


def energy(x: ArrayLike, y: ArrayLike) -> float:
    """Return the energy distance sqrt(2 E |X - Y| - E |X - X'| - E |Y - Y'|)."""
    return _between("energy", x, y)


def distance(
    x: ArrayLike,
    y: ArrayLike,
    kind: Name = "ks",
    resamples: Count = 200,
    confidence: Number = 0.95,
    seed: Count = 0,
) -> Distance:
    """Return a distance with a bootstrap interval; `kind` is ks, wasserstein or energy."""
    sample_x, sample_y = _samples(x, y)
    name = one_of(kind, NORMS, "distance")
    level = real(confidence, "confidence", above=0)
    if level >= 1:
        raise InputError(
            f"confidence: expected a number between 0 and 1, got {confidence!r}",
            argument="confidence",
        )
    points, at_x, at_y = _places(sample_x, sample_y)
    norm = NORMS[name]
    width = np.diff(points)
    rng = np.random.default_rng(count(seed, "seed", least=0))
    difference = _difference(at_x, at_y, points.size)
    noise = []
    for _ in range(count(resamples, "resamples")):
        again_x = rng.choice(at_x, at_x.size)
        again_y = rng.choice(at_y, at_y.size)
        noise.append(norm(_difference(again_x, again_y, points.size) - difference, width))
    value = norm(difference, width)
    reach = float(np.quantile(noise, level))
    return Distance(name, value, max(0.0, value - reach), value + reach)


def _places(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the sorted points of both samples, and for each sample the indices of its numbers."""
    points, where = np.unique(np.concatenate([x, y]), return_inverse=True)
    return points, where[: x.size], where[x.size :]


def _difference(at_x: np.ndarray, at_y: np.ndarray, points: int) -> np.ndarray:
    """Return F - G at every point."""
    F = np.bincount(at_x, minlength=points) / at_x.size
    G = np.bincount(at_y, minlength=points) / at_y.size
    return np.cumsum(F - G)


def _between(kind: str, x: ArrayLike, y: ArrayLike) -> float:
    points, at_x, at_y = _places(*_samples(x, y))
    return NORMS[kind](_difference(at_x, at_y, points.size), np.diff(points))


def _samples(x: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    return finite(_on_host(x), "x"), finite(_on_host(y), "y")


def _on_host(values: ArrayLike) -> ArrayLike:
    if is_torch_array(values):
        return numpy(values)
    return values


# Functions of F - G at the points and of the lengths between them.
NORMS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "ks": lambda difference, width: float(np.abs(difference).max()),
    "wasserstein": lambda difference, width: float(np.abs(difference[:-1]) @ width),
    "energy": lambda difference, width: float(np.sqrt(2 * difference[:-1] ** 2 @ width)),
}
