"""How far two samples of a number are apart, with intervals.

    KS = sup |F - G|,   W1 = int |F - G| dx,   energy = (2 int (F - G)^2 dx)^{1/2}

F and G are the empirical distribution functions of the samples. All three are norms of F - G, so
with the laws' own functions F_0 and G_0 the triangle inequality says

    | ||F - G|| - ||F_0 - G_0|| |  <=  ||D||,      D = (F - F_0) - (G - G_0)

and the bootstrap, which draws both samples again with replacement, knows the law of D for any two
laws, equal ones included, where that of a distance itself is lost: resampling adds noise, and noise
pushes distances up. The interval is the estimate, less and more a quantile of ||D||, cut at zero:
it holds the distance of the laws at least as often as it says.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orderone.core.covariances import numpy
from orderone.core.errors import one_of
from orderone.core.exact import count
from orderone.core.inputs import ArrayLike, Count, Name, Number
from orderone.core.real_arrays import finite
from orderone.core.reals import real


@dataclass(frozen=True)
class Distance:
    """A distance of two laws, estimated from samples, with its interval."""

    name: str
    value: float
    low: float
    high: float

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


def ks(x: ArrayLike, y: ArrayLike) -> float:
    """Kolmogorov-Smirnov."""
    return _between("ks", x, y)


def wasserstein(x: ArrayLike, y: ArrayLike) -> float:
    """Wasserstein-1, in the units of the samples."""
    return _between("wasserstein", x, y)


def energy(x: ArrayLike, y: ArrayLike) -> float:
    """Energy distance: the root of 2 E d(X, Y) - E d(X, X') - E d(Y, Y'), d the distance of
    numbers."""
    return _between("energy", x, y)


def distance(
    x: ArrayLike,
    y: ArrayLike,
    kind: Name = "ks",
    resamples: Count = 200,
    confidence: Number = 0.95,
    seed: Count = 0,
) -> Distance:
    """`kind` is ks, wasserstein or energy."""
    sample_x, sample_y = _samples(x, y)
    name = one_of(kind, NORMS, "distance")
    level = real(confidence, "confidence", above=0)
    if level >= 1:
        raise ValueError(f"confidence: expected a number between 0 and 1, got {confidence!r}")
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
    """Return the points of both samples in order, and which of them each number is."""
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
    return finite(numpy(x), "x").ravel(), finite(numpy(y), "y").ravel()


# Functions of F - G at the points and of the lengths between them.
NORMS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "ks": lambda difference, width: float(np.abs(difference).max()),
    "wasserstein": lambda difference, width: float(np.abs(difference[:-1]) @ width),
    "energy": lambda difference, width: float(np.sqrt(2 * difference[:-1] ** 2 @ width)),
}
