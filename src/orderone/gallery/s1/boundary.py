"""How deep networks can be trained: the boundary in a map of accuracies, and how far curves are
from it.

In each column (a weight variance and a seed) the boundary is the depth where accuracy first falls
below halfway between chance and the best of the map, interpolated in log depth. Where no depth of
the grid is good enough, or all are, only a bound is known: the boundary is an interval [low, high],
and a curve inside is at distance 0. Curves are cut at the ends of the grid: what they promise
beyond was not tried.

    distance = log(curve / high) above, log(curve / low) below: positive where a curve promises too
    much
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

CHANCE = 0.1
LEAST = 0.2  # accuracy below which nothing was learned, however bad the best is
LEVEL = 0.95  # of intervals
RESAMPLES = 2000  # of columns
FEWEST = 3  # columns with a boundary inside the grid, to say anything
FACTORS = np.exp(np.linspace(np.log(0.3), np.log(100), 2000))  # tried for depth = factor x scale


def boundaries(frame: pd.DataFrame) -> pd.DataFrame:
    """weight_var, seed, low, high, and the ends of the grid, of each column of weight_var, seed,
    depth, accuracy."""
    frame = frame.assign(
        accuracy=frame.accuracy.where(np.isfinite(frame.accuracy), 0.0)
    )  # what diverged is not trained
    half = max((CHANCE + frame.accuracy.max()) / 2, LEAST)
    rows = []
    for _, column in frame.sort_values("depth").groupby(["weight_var", "seed"]):
        rows.append((column.weight_var.iloc[0], column.seed.iloc[0], *_crossing(column, half)))
    found = pd.DataFrame(rows, columns=["weight_var", "seed", "low", "high"])
    return found.assign(shallowest=frame.depth.min(), deepest=frame.depth.max())


def _crossing(column: pd.DataFrame, half: float) -> tuple[float, float]:
    depths = column.depth.to_numpy(float)
    over = column.accuracy.to_numpy() - half
    below = np.flatnonzero(over < 0)
    if not len(below):
        return depths[-1], np.inf
    i = below[0]
    if i == 0:
        return 0.0, depths[0]
    share = over[i - 1] / (over[i - 1] - over[i])
    depth = float(np.exp((1 - share) * np.log(depths[i - 1]) + share * np.log(depths[i])))
    return depth, depth


def distances(edges: pd.DataFrame, curve: np.ndarray) -> np.ndarray:
    """Of a curve, given at each boundary; several curves as rows."""
    curve = np.clip(curve, edges.shallowest.to_numpy(), edges.deepest.to_numpy())
    with np.errstate(divide="ignore"):
        log, low, high = np.log(curve), np.log(edges.low.to_numpy()), np.log(edges.high.to_numpy())
    return np.where(log > high, log - high, np.where(log < low, log - low, 0.0))


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, from columns drawn again and again; nan where too few columns
    tell."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isfinite(self.value):
            return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"
        return "unknown"

    def below(self, number: float) -> bool | None:
        """None if the interval has both sides of the number, or there is none."""
        if self.high < number:
            return True
        if self.low > number:
            return False
        return None

    def above(self, number: float) -> bool | None:
        below = self.below(number)
        return None if below is None else not below

    def has(self, number: float, wide: float) -> bool | None:
        """None if the interval also has another number that is `wide` times as small or large."""
        if not np.isfinite(self.value) or (
            self.low <= number <= self.high and self.high / self.low >= wide
        ):
            return None
        return self.low <= number <= self.high


UNKNOWN = Estimate(np.nan, np.nan, np.nan)


def estimate(edges: pd.DataFrame, statistic: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    """`statistic` takes numbers of columns, (rows, columns), and gives one number for each row of
    them."""
    if known(edges) < FEWEST:
        return UNKNOWN
    draws = np.random.default_rng(0).integers(len(edges), size=(RESAMPLES, len(edges)))
    tail = (1 - LEVEL) / 2
    value = statistic(np.arange(len(edges))[None])[0]
    low, high = np.quantile(statistic(draws), [tail, 1 - tail])
    return Estimate(float(value), float(low), float(high))


def known(edges: pd.DataFrame) -> int:
    return int((edges.low == edges.high).sum())


def bias(edges: pd.DataFrame, curve: np.ndarray) -> Estimate:
    """Mean distance: below 0 for a curve that underestimates."""
    found = distances(edges, curve)
    return estimate(edges, lambda columns: found[columns].mean(-1))


def misfit(edges: pd.DataFrame, curve: np.ndarray) -> Estimate:
    """Mean size of the distance, which does not let errors cancel."""
    found = np.abs(distances(edges, curve))
    return estimate(edges, lambda columns: found[columns].mean(-1))


def worse_by(edges: pd.DataFrame, curve: np.ndarray, other: np.ndarray) -> Estimate:
    """Misfit of a curve less that of another, in the same columns."""
    found = np.abs(distances(edges, curve)) - np.abs(distances(edges, other))
    return estimate(edges, lambda columns: found[columns].mean(-1))


def factor(edges: pd.DataFrame, scale: np.ndarray) -> Estimate:
    """k of depth = k x scale, by least squares of distances; the middle where several are equally
    good."""
    squares = distances(edges, FACTORS[:, None] * scale) ** 2  # (factors, columns)

    def best(columns: np.ndarray) -> np.ndarray:
        weights = np.apply_along_axis(
            np.bincount, -1, columns, minlength=len(edges)
        )  # how often each was drawn
        sums = weights @ squares.T
        good = sums <= sums.min(-1, keepdims=True) + 1e-12
        return np.exp((good * np.log(FACTORS)).sum(-1) / good.sum(-1))

    return estimate(edges, best)
