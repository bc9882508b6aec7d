"""The boundary of trainable depths in a map of accuracies, and the distances of curves from it.

In each column (a weight variance and a seed) the boundary is the depth where accuracy first falls
below halfway between chance and the best accuracy of the map, interpolated in log depth. If no
depth of the grid is good enough, or all are, only a bound is known: the boundary is an interval
[low, high], and a curve inside it has distance 0. Curves are clipped to the range of the grid,
because other depths were not measured.

    distance = log(curve / high) above, log(curve / low) below: positive if a curve predicts too
    large a depth
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

CHANCE = 0.1
LEAST = 0.2  # lower accuracies always count as not trained
LEVEL = 0.95  # confidence of intervals
RESAMPLES = 2000  # bootstrap samples of columns
FEWEST = 3  # least number of columns with a boundary inside the grid for an estimate
FACTORS = np.exp(np.linspace(np.log(0.3), np.log(100), 2000))  # candidates: depth = factor x scale


def boundaries(frame: pd.DataFrame) -> pd.DataFrame:
    """Return weight_var, seed, low, high and the ends of the grid for each column.

    `frame` has the columns weight_var, seed, depth and accuracy.
    """
    frame = frame.assign(
        accuracy=frame.accuracy.where(np.isfinite(frame.accuracy), 0.0)
    )  # diverged networks count as not trained
    half = max((CHANCE + frame.accuracy.max()) / 2, LEAST)
    rows = []
    for _, column in frame.sort_values("depth").groupby(["weight_var", "seed"]):
        rows.append((column.weight_var.iloc[0], column.seed.iloc[0], *_crossing(column, half)))
    edges = pd.DataFrame(rows, columns=["weight_var", "seed", "low", "high"])
    return edges.assign(shallowest=frame.depth.min(), deepest=frame.depth.max())


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
    """Return the distances of a curve, which has a value for each boundary; rows are curves."""
    curve = np.clip(curve, edges.shallowest.to_numpy(), edges.deepest.to_numpy())
    with np.errstate(divide="ignore"):
        log, low, high = np.log(curve), np.log(edges.low.to_numpy()), np.log(edges.high.to_numpy())
    return np.where(log > high, log - high, np.where(log < low, log - low, 0.0))


@dataclass(frozen=True)
class Estimate:
    """A number with its bootstrap interval over columns; nan if too few columns have a boundary."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isfinite(self.value):
            return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"
        return "unknown"

    def below(self, number: float) -> bool | None:
        """Return whether the estimate is below the number; None if the interval contains it."""
        if self.high < number:
            return True
        if self.low > number:
            return False
        return None

    def above(self, number: float) -> bool | None:
        below = self.below(number)
        return None if below is None else not below

    def has(self, number: float, wide: float) -> bool | None:
        """Return whether the interval contains the number; None if it is wider than `wide`."""
        if not np.isfinite(self.value) or (
            self.low <= number <= self.high and self.high / self.low >= wide
        ):
            return None
        return self.low <= number <= self.high


UNKNOWN = Estimate(np.nan, np.nan, np.nan)


def estimate(edges: pd.DataFrame, statistic: Callable[[np.ndarray], np.ndarray]) -> Estimate:
    """Estimate a statistic, which takes indices of columns (rows, columns) and returns one number
    per row."""
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
    """Return the mean distance, which is below 0 for a curve that underestimates the depth."""
    signed = distances(edges, curve)
    return estimate(edges, lambda columns: signed[columns].mean(-1))


def misfit(edges: pd.DataFrame, curve: np.ndarray) -> Estimate:
    """Return the mean absolute distance, in which errors do not cancel."""
    absolute = np.abs(distances(edges, curve))
    return estimate(edges, lambda columns: absolute[columns].mean(-1))


def worse_by(edges: pd.DataFrame, curve: np.ndarray, other: np.ndarray) -> Estimate:
    """Return the misfit of a curve minus that of another, over the same columns."""
    difference = np.abs(distances(edges, curve)) - np.abs(distances(edges, other))
    return estimate(edges, lambda columns: difference[columns].mean(-1))


def factor(edges: pd.DataFrame, scale: np.ndarray) -> Estimate:
    """Fit k of depth = k x scale by least squares of distances; the middle if several are equally
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
