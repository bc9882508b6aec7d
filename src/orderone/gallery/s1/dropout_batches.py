"""Random dropout networks in independent batches, so that fits over layers have correct intervals.

Layers of one network are not independent of each other; batches of networks are. An estimate is
computed from all batches, and again without each one in turn (the jackknife). With B batches,

    se^2 = (B - 1)/B sum_b (t_b - mean t)^2,    t_b the estimate without batch b;    interval:
                                                Student's t, B - 1 degrees
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtri, stdtrit

from orderone.gallery.frames import Frame, Line
from orderone.measure import Fit, dropout_metrics
from orderone.measure.dropout_metrics import QUANTITIES
from orderone.measure.fit import fit_noisy_exponent
from orderone.theory import MeanField

CONFIDENCE = 0.99
DIGITS = 5  # of stored numbers; their noise is much larger


class Moments(NamedTuple):
    """Mean and variance over many networks, (depth, quantities)."""

    mean: np.ndarray
    var: np.ndarray
    networks: int

    def of(self, quantity: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, variance over networks and standard error of the mean for each layer."""
        i = QUANTITIES.index(quantity)
        return self.mean[:, i], self.var[:, i], np.sqrt(self.var[:, i] / self.networks)


@dataclass(frozen=True)
class Batches:
    mean: np.ndarray  # (batches, depth, quantities)
    var: np.ndarray
    size: int  # networks in a batch

    @property
    def depth(self) -> int:
        return self.mean.shape[1]

    def pooled(self, without: int | None = None) -> Moments:
        chosen = np.arange(len(self.mean)) != without
        mean = self.mean[chosen]
        var = self.var[chosen]
        networks = self.size * int(chosen.sum())
        centre = mean.mean(0)
        squares = (self.size - 1) * var.sum(0) + self.size * ((mean - centre) ** 2).sum(0)
        return Moments(centre, squares / (networks - 1), networks)

    def jackknife(self, estimate: Callable[[Moments], float]) -> Fit:
        value = estimate(self.pooled())
        others = np.array([estimate(self.pooled(without=b)) for b in range(len(self.mean))])
        B = len(others)
        reach = float(stdtrit(B - 1, (1 + CONFIDENCE) / 2) * np.sqrt((B - 1) * others.var()))
        return Fit(value, value - reach, value + reach)


def measure(
    network: MeanField,
    width: int,
    depth: int,
    batches: int,
    size: int,
    seed: tuple[int, ...],
    start: tuple[float, float] | None = None,
) -> Batches:
    """Measure `batches` of `size` networks.

    Inputs have length and correlation `start`, by default those of the fixed point.
    """
    if start is None:
        start = stationary(network)
    q0, c0 = start
    weight_var, bias_var, keep = (float(x) for x in network.one())
    shape = (depth, len(QUANTITIES))
    means: list[np.ndarray] = []
    variances: list[np.ndarray] = []
    for b in range(batches):
        frame = dropout_metrics(
            network.activation,
            weight_var,
            bias_var,
            keep,
            width=width,
            depth=depth,
            instances=size,
            q0=q0,
            c0=c0,
            seed=seed_of(*seed, b),
            dtype=torch.float32,
        )
        means.append(frame["mean"].to_numpy().reshape(shape))
        variances.append(frame["var"].to_numpy().reshape(shape))
    return Batches(np.stack(means), np.stack(variances), size)


def stationary(network: MeanField) -> tuple[float, float]:
    """Return mean square and correlation of inputs that put the first layer at the fixed point."""
    weight_var, bias_var, keep = (float(x) for x in network.one())
    q0 = (network.q_star - bias_var) * keep / weight_var
    overlap = (network.q_star * network.c_star - bias_var) / weight_var
    return q0, float(np.clip(overlap / q0, -1, 1))


def seed_of(*numbers: int) -> int:
    """Return an independent seed for each combination of numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def power_of_width(widths: Line, values: Line, low: Line, high: Line) -> Fit:
    """Fit the power of the width in values with intervals.

    The intervals are Student's; read as normal intervals, they give slightly too large errors.
    """
    return fit_noisy_exponent(
        widths, values, values * np.log(high / low) / (2 * ndtri((1 + CONFIDENCE) / 2))
    )


def brief(frame: Frame) -> Frame:
    """Round numbers to `DIGITS` digits, so that files of 200 layers stay small."""
    return frame.map(lambda x: float(f"{x:.{DIGITS}g}") if isinstance(x, float) else x)
