"""The best learning rate of one size, with its uncertainty, from losses on a grid of rates and
several seeds.

With x = log2(lr) and the mean loss over seeds m(x), a parabola is fitted to the points within 1.5
octaves (at least one step of the grid) of the smallest m:

    m(x) = m* + a (x - x*)^2

Losses above three times the median excess in that window are cut there, so that a cliff, or a run
that diverged (inf: above everything), pulls no harder than an ordinary point. In a window of three
points, whose median a cliff moves, the limit is twice the excess two steps away (of a parabola, a
neighbour's is at most once that). Two errors are added up:

    seeds       bootstrap: seeds are drawn again, all learning rates of a seed together; the spread
                is multiplied by sqrt(S / (S - 1)), since S seeds drawn from S spread less than S
                new ones, and has S - 1 degrees of freedom
    resolution  what the grid hides. 6 % of a step of the grid for smooth bowls (fits to bowls of
    several shapes, placed
                anywhere between two points, scatter less); beside a cliff the parabola knows only
                the nearest point, whose error is uniform over a step: 1/sqrt(12), and half of that
                with a cliff further off

An optimum at the end of the grid is no number: it is beyond. Nor is there one where all losses are
equal (flat), or where there is a single learning rate.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

REACH = 1.5  # octaves on either side of the smallest loss
CUT = 3.0
CUT_OF_THREE = 2.0  # times the median excess; times that of the second neighbours
SMOOTH = 0.06
CLIFF = 12**-0.5  # of a step of the grid
RESAMPLES = 1000
AT_THE_END = 0.2  # a share of resamples with the optimum at the end of the grid that is too many
INSIDE = ""
BELOW = "below"
ABOVE = "above"
NOWHERE = "nowhere"
FLAT = "flat"
SINGLE = "single"
EQUAL = 1e-9  # relative: losses that differ by rounding only


@dataclass(frozen=True)
class Curve:
    """Losses of one size: one row a seed, one column a learning rate, in ascending order; inf where
    training diverged."""

    size: int
    x: np.ndarray  # (rates,) log2(lr)
    losses: np.ndarray  # (seeds, rates)

    @property
    def mean(self) -> np.ndarray:
        return self.losses.mean(0)


@dataclass(frozen=True)
class Optimum:
    """log2(lr) of the smallest loss; nan if it is `beyond` the grid."""

    size: int
    x: float
    low: float
    high: float
    noise: float  # standard error that seeds cause
    resolution: float  # and the grid
    seeds: int
    loss: float
    bend: float  # a
    beyond: str = INSIDE

    @property
    def lr(self) -> float:
        return float(2.0**self.x)


def optimum(curve: Curve, confidence: float = 0.95) -> Optimum:
    """Of the mean over seeds; the interval has the given confidence, and is everything for a single
    seed."""
    seeds = len(curve.losses)
    mean = curve.mean
    best = int(mean.argmin())
    if (beyond := _beyond(mean, best)) != INSIDE:
        return _no_number(curve, beyond, float(mean[best]))
    x, bend, loss, cut = (value[0] for value in vertex(curve.x, mean[None]))
    drawn, ends = _resampled(curve)
    for word, share in zip((BELOW, ABOVE), ends, strict=True):
        if share > AT_THE_END:
            return _no_number(curve, word, float(loss))
    if seeds > 1:
        noise = float(drawn.std() * (seeds / (seeds - 1)) ** 0.5)
    else:
        noise = np.inf
    resolution = float(max(SMOOTH, CLIFF * cut) * np.diff(curve.x[best - 1 : best + 2]).max())
    error, freedom = combined([(1.0, noise, seeds - 1, resolution)])
    reach = quantile(freedom, confidence) * error
    low = float(x - reach)
    high = float(x + reach)
    return Optimum(
        curve.size, float(x), low, high, noise, resolution, seeds, float(loss), float(bend)
    )


def _beyond(mean: np.ndarray, best: int) -> str:
    if not np.isfinite(mean[best]):
        return NOWHERE
    if len(mean) == 1:
        return SINGLE
    finite = mean[np.isfinite(mean)]
    if len(finite) > 1 and np.ptp(finite) <= EQUAL * np.abs(finite).max():
        return FLAT
    if best == 0:
        return BELOW
    if best == len(mean) - 1:
        return ABOVE
    return INSIDE


def _no_number(curve: Curve, beyond: str, loss: float) -> Optimum:
    """An optimum beyond the grid is bounded on one side; where all rates diverged, it can only be a
    smaller one."""
    low = curve.x[-1] if beyond == ABOVE else -np.inf
    high = curve.x[0] if beyond in (BELOW, NOWHERE) else np.inf
    unknown = (float("nan"), float(low), float(high), np.inf, np.inf)
    return Optimum(curve.size, *unknown, len(curve.losses), loss, float("nan"), beyond)


def _resampled(curve: Curve) -> tuple[np.ndarray, tuple[float, float]]:
    """Optima of curves with the seeds drawn again; and how often they are at the two ends of the
    grid."""
    drawn = draws(len(curve.losses))
    means = curve.losses[drawn].mean(1)  # (resamples, rates)
    best = means.argmin(1)
    ends = float((best == 0).mean()), float((best == len(curve.x) - 1).mean())
    return vertex(curve.x, means)[0], ends


@lru_cache
def draws(seeds: int) -> np.ndarray:
    """All ways of drawing with replacement, or a thousand of them."""
    if seeds**seeds <= RESAMPLES:
        return np.array(list(product(range(seeds), repeat=seeds)))
    return np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))


def vertex(
    x: np.ndarray, curves: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each row of losses: x*, a and m* of its parabola, and whether points were cut (1: beside
    the smallest, 1/2)."""
    rows = np.arange(len(curves))
    best = curves.argmin(1).clip(1, len(x) - 2)
    left = x[best] - x[best - 1]
    right = x[best + 1] - x[best]
    distance = x - x[best][:, None]
    near = np.abs(distance) <= np.maximum(REACH, np.maximum(left, right))[:, None] * (1 + 1e-9)
    excess = np.maximum(_above(curves, curves[rows, best]), 0)
    ceiling = np.minimum(
        CUT * _typical(excess, near & (distance != 0)), _of_three(excess, best, near)
    )
    fitted = np.minimum(excess, ceiling[:, None])
    constant, slope, bend = _parabolas(distance, fitted, near)
    shift = np.where(bend > 0, -slope / np.where(bend > 0, 2 * bend, 1), 0).clip(-left, right)
    lowest = curves[rows, best] + np.maximum(
        constant - bend * shift**2, -np.abs(curves[rows, best]) / 2
    )  # not below zero
    beside = np.maximum(excess[rows, best - 1], excess[rows, best + 1]) > ceiling
    cut = np.where(beside, 1.0, np.where((near & (excess > ceiling[:, None])).any(1), 0.5, 0.0))
    return x[best] + shift, bend, lowest, cut


def _above(curves: np.ndarray, lowest: np.ndarray) -> np.ndarray:
    """inf stays inf, also where nothing is finite."""
    return np.where(
        np.isfinite(curves), curves - np.where(np.isfinite(lowest), lowest, 0)[:, None], np.inf
    )


def _typical(excess: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """The median; where half of the window diverged, the largest that did not."""
    values = np.where(counted, excess, np.nan)
    finite = np.where(np.isfinite(values), values, -np.inf).max(1, initial=0)
    median = np.nanmedian(values, axis=1)
    return np.where(np.isfinite(median), median, finite) + 1e-12


def _of_three(excess: np.ndarray, best: np.ndarray, near: np.ndarray) -> np.ndarray:
    """The limit in a window of three points; no limit in others."""
    around = np.pad(excess, ((0, 0), (1, 1)), constant_values=np.inf)  # beyond the ends
    rows = np.arange(len(excess))
    second = np.minimum(around[rows, best - 1], around[rows, best + 3])
    return np.where(near.sum(1) == 3, CUT_OF_THREE * second, np.inf)


def _parabolas(
    d: np.ndarray, y: np.ndarray, counted: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least squares for constant + slope d + bend d^2 in every row."""
    powers = np.stack([np.ones_like(d), d, d**2], axis=2)
    moments = np.einsum("rp,rpi,rpj->rij", counted.astype(float), powers, powers)
    found = np.linalg.solve(
        moments, np.einsum("rp,rpi,rp->ri", counted.astype(float), powers, y)[..., None]
    )[..., 0]
    return found[:, 0], found[:, 1], found[:, 2]


def combined(parts: list[tuple[float, float, int, float]]) -> tuple[float, float]:
    """Standard error and degrees of freedom (Welch-Satterthwaite) of a sum of weight * estimate,
    each estimate with its noise, the freedom that noise was estimated with, and its resolution,
    which is known."""
    noise = [(weight * sigma) ** 2 for weight, sigma, _, _ in parts]
    known = [(weight * resolution) ** 2 for weight, _, _, resolution in parts]
    total = sum(noise) + sum(known)
    if not np.isfinite(total):
        return np.inf, 1.0
    spread = sum(v**2 / max(freedom, 1) for v, (_, _, freedom, _) in zip(noise, parts, strict=True))
    return float(total**0.5), float(total**2 / spread) if spread else np.inf


def quantile(freedom: float, confidence: float) -> float:
    """Of Student's t: how many standard errors an interval reaches."""
    from scipy.special import stdtrit  # a third of a second that an import of sweeps can do without

    return float(stdtrit(min(freedom, 1e6), (1 + confidence) / 2))
