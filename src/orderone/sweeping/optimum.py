"""Best learning rate of one size and its uncertainty, from a grid of rates and several seeds.

With x = log2(lr) and the mean loss over seeds m(x), a parabola is fitted to the points within 1.5
octaves (at least one step of the grid) of the smallest m:

    m(x) = m* + a (x - x*)^2

The excess of a loss over the smallest m is limited to three times the median excess in that window,
so that a cliff, or a run that diverged (loss inf), has no more influence than an ordinary point. In
a window of three points, where a cliff changes the median, the limit is twice the excess two steps
away (in a parabola, the excess one step away is smaller than that). Two errors are added:

    seeds       bootstrap: seeds are resampled, all learning rates of a seed together; the spread
                is multiplied by sqrt(S / (S - 1)), since S seeds drawn from S spread less than S
                new ones, and has S - 1 degrees of freedom
    resolution  error from the spacing of the grid: 6 % of a step for smooth bowls (fits to bowls
                of several shapes, placed anywhere between two points, scatter less). Beside a
                cliff the parabola knows only the nearest point, whose error is uniform over a
                step: 1/sqrt(12). With a cliff further away, half of that.

An optimum at the end of the grid has no number: it is beyond the grid. There is also none if all
losses are equal (flat), or if there is a single learning rate.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

REACH = 1.5  # octaves on either side of the smallest loss
CUT = 3.0  # limit of the excess, times the median excess
CUT_OF_THREE = 2.0  # limit in a window of three points, times the excess two steps away
SMOOTH = 0.06  # resolution for a smooth bowl, in steps of the grid
CLIFF = 12**-0.5  # resolution beside a cliff, in steps of the grid
RESAMPLES = 1000
AT_THE_END = 0.2  # largest share of resamples that may have their optimum at an end of the grid
INSIDE = ""
BELOW = "below"
ABOVE = "above"
NOWHERE = "nowhere"
FLAT = "flat"
SINGLE = "single"
EQUAL = 1e-9  # relative difference of losses that counts as rounding


@dataclass(frozen=True)
class Curve:
    """Losses of one size: one row per seed, one column per learning rate, in ascending order.

    The loss is inf where training diverged.
    """

    size: int
    x: np.ndarray  # (rates,) log2(lr)
    losses: np.ndarray  # (seeds, rates)

    @property
    def mean(self) -> np.ndarray:
        return self.losses.mean(0)


@dataclass(frozen=True)
class Optimum:
    """Best log2(lr) of one size; nan if it is `beyond` the grid."""

    size: int
    x: float
    low: float
    high: float
    noise: float  # standard error from the seeds
    resolution: float  # standard error from the grid
    seeds: int
    loss: float
    bend: float  # a of the parabola m* + a (x - x*)^2
    beyond: str = INSIDE
    grid: tuple[float, float] = (-np.inf, np.inf)  # smallest and largest log2(lr) that was run
    open_below: bool = False  # the interval reaches below the grid, whose end is then `low`
    open_above: bool = False  # the interval reaches above the grid, whose end is then `high`
    loss_noise: float = np.inf  # standard error of `loss` from the seeds

    @property
    def lr(self) -> float:
        return float(2.0**self.x)


def optimum(curve: Curve, confidence: float = 0.95) -> Optimum:
    """Return the best learning rate for the mean loss over seeds.

    Its interval has the given confidence, and ends at the ends of the grid: the trainings say
    nothing about rates outside it. For a single seed it is infinite, since it is unknown.
    """
    seeds = len(curve.losses)
    mean = curve.mean
    best = int(mean.argmin())
    if (beyond := _beyond(mean, best)) != INSIDE:
        return _no_number(curve, beyond, float(mean[best]))
    x, bend, loss, cut = (value[0] for value in vertex(curve.x, mean[None]))
    drawn, losses, ends = _resampled(curve)
    for word, share in zip((BELOW, ABOVE), ends, strict=True):
        if share > AT_THE_END:
            return _no_number(curve, word, float(loss))
    noise = _standard_error(drawn, seeds)
    resolution = float(max(SMOOTH, CLIFF * cut) * np.diff(curve.x[best - 1 : best + 2]).max())
    error, freedom = combined([(1.0, noise, seeds - 1, resolution)])
    reach = quantile(freedom, confidence) * error
    low = float(x - reach)
    high = float(x + reach)
    grid = _ends(curve)
    known = seeds > 1
    return Optimum(
        curve.size,
        float(x),
        max(low, grid[0]) if known else low,
        min(high, grid[1]) if known else high,
        noise,
        resolution,
        seeds,
        float(loss),
        float(bend),
        grid=grid,
        open_below=known and low < grid[0],
        open_above=known and high > grid[1],
        loss_noise=_standard_error(losses, seeds),
    )


def _standard_error(drawn: np.ndarray, seeds: int) -> float:
    """Return the standard error of a number from its values for resampled seeds."""
    if seeds == 1:
        return np.inf
    return float(drawn.std() * (seeds / (seeds - 1)) ** 0.5)


def _ends(curve: Curve) -> tuple[float, float]:
    return float(curve.x[0]), float(curve.x[-1])


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
    """Return an optimum without a number.

    Beyond the grid it is bounded on one side. Where all learning rates diverged, the best one must
    be smaller.
    """
    low = curve.x[-1] if beyond == ABOVE else -np.inf
    if beyond in (BELOW, NOWHERE):
        high = curve.x[0]
    else:
        high = np.inf
    unknown = (float("nan"), float(low), float(high), np.inf, np.inf)
    return Optimum(
        curve.size, *unknown, len(curve.losses), loss, float("nan"), beyond, _ends(curve)
    )


def _resampled(curve: Curve) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    """Return optima and their losses for resampled seeds, and the shares of optima at the ends."""
    drawn = draws(len(curve.losses))
    means = curve.losses[drawn].mean(1)  # (resamples, rates)
    best = means.argmin(1)
    ends = float((best == 0).mean()), float((best == len(curve.x) - 1).mean())
    x, _, losses, _ = vertex(curve.x, means)
    return x, losses, ends


@lru_cache
def draws(seeds: int) -> np.ndarray:
    """Return all ways of drawing with replacement, or a thousand random ones."""
    if seeds**seeds <= RESAMPLES:
        return np.array(list(product(range(seeds), repeat=seeds)))
    return np.random.default_rng(0).integers(seeds, size=(RESAMPLES, seeds))


def vertex(
    x: np.ndarray, curves: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x*, a and m* of the parabola of each row of losses, and whether points were cut.

    The last value is 1 if a neighbour of the smallest loss was cut, 1/2 if another point was, else
    0.
    """
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
    """Return the losses minus the lowest one; inf stays inf, also if nothing is finite."""
    return np.where(
        np.isfinite(curves), curves - np.where(np.isfinite(lowest), lowest, 0)[:, None], np.inf
    )


def _typical(excess: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """Return the median excess; if half of the window diverged, the largest finite excess."""
    values = np.where(counted, excess, np.nan)
    finite = np.where(np.isfinite(values), values, -np.inf).max(1, initial=0)
    median = np.nanmedian(values, axis=1)
    return np.where(np.isfinite(median), median, finite) + 1e-12


def _of_three(excess: np.ndarray, best: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Return the limit of the excess in windows of three points; inf for larger windows."""
    around = np.pad(excess, ((0, 0), (1, 1)), constant_values=np.inf)  # beyond the ends
    rows = np.arange(len(excess))
    second = np.minimum(around[rows, best - 1], around[rows, best + 3])
    return np.where(near.sum(1) == 3, CUT_OF_THREE * second, np.inf)


def _parabolas(
    d: np.ndarray, y: np.ndarray, counted: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fit constant + slope d + bend d^2 to every row by least squares."""
    powers = np.stack([np.ones_like(d), d, d**2], axis=2)
    moments = np.einsum("rp,rpi,rpj->rij", counted.astype(float), powers, powers)
    coefficients = np.linalg.solve(
        moments, np.einsum("rp,rpi,rp->ri", counted.astype(float), powers, y)[..., None]
    )[..., 0]
    return coefficients[:, 0], coefficients[:, 1], coefficients[:, 2]


def combined(parts: list[tuple[float, float, int, float]]) -> tuple[float, float]:
    """Return standard error and degrees of freedom of a weighted sum of estimates.

    Each part is (weight, noise, degrees of freedom of the noise, resolution). The noise is
    estimated, the resolution is known; the degrees of freedom are those of Welch-Satterthwaite.
    """
    noise = [(weight * sigma) ** 2 for weight, sigma, _, _ in parts]
    known = [(weight * resolution) ** 2 for weight, _, _, resolution in parts]
    total = sum(noise) + sum(known)
    if not np.isfinite(total):
        return np.inf, 1.0
    spread = sum(v**2 / max(freedom, 1) for v, (_, _, freedom, _) in zip(noise, parts, strict=True))
    return float(total**0.5), float(total**2 / spread) if spread else np.inf


def quantile(freedom: float, confidence: float) -> float:
    """Return the quantile of Student's t: half the width of an interval in standard errors."""
    from scipy.special import stdtrit  # imported here: it takes a third of a second

    return float(stdtrit(min(freedom, 1e6), (1 + confidence) / 2))


def excess(curve: Curve, best: Optimum, x: float) -> float:
    """Return the loss at x minus the smallest loss.

    Near the optimum this is the parabola; elsewhere it is interpolated between grid points.
    """
    if abs(x - best.x) <= REACH and np.isfinite(np.interp(x, curve.x, curve.mean)):
        return float(max(best.bend, 0.0) * (x - best.x) ** 2)
    right = int(np.searchsorted(curve.x, x).clip(1, len(curve.x) - 1))
    before = curve.mean[right - 1]
    after = curve.mean[right]
    share = float(np.clip((x - curve.x[right - 1]) / (curve.x[right] - curve.x[right - 1]), 0, 1))
    if share == 0:
        there = before
    elif share == 1:
        there = after
    else:
        there = before * (1 - share) + after * share
    return float(max(there - best.loss, 0.0))
