"""Fixed points of the length map: the lengths to which signals tend.

    q' = (weight_var / keep) E phi(sqrt(q) z)^2 + bias_var                                    S1 (2)

A fixed point exists only under conditions (erratum S1.2): linear networks need weight_var < keep
and ReLU networks weight_var < 2 keep; bounded activations always have one. q* is the fixed point to
which a signal of length 1 tends: the next one above if its length grows at first, the next one
below otherwise. Sign changes of q' - q are located on a grid of 36 decades, on which E phi^2 is
computed once for each activation; `close_pairs` finds two of them between neighbours. If the length
grows on all of the grid, a coarser grid continues to the largest doubles.

Lengths never oscillate. sqrt(q) E phi(sqrt(q) z)^2 is an integral of phi(x)^2 exp(-x^2 / 2q) over
x, which grows with q, so that d log q' / d log q >= -1/2. A cycle of period 2 would need a mean
slope of -1, and without such a cycle there are no longer ones.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

from functools import lru_cache

import numpy as np

from orderone.core.errors import InputError
from orderone.theory.activations import Activation
from orderone.theory.meanfield.close_pairs import moment_slopes, turning_points
from orderone.theory.meanfield.roots import bracketed
from orderone.theory.meanfield.short_signals import SHORT, short_signals

DECADES = 18
PER_DECADE = 8
GRID = 10.0 ** (np.arange(-DECADES * PER_DECADE, DECADES * PER_DECADE + 1) / PER_DECADE)
BEYOND = 10.0 ** np.arange(DECADES, 310, 4).clip(max=308)
ONE = DECADES * PER_DECADE  # GRID[ONE] = 1
NOISE = 1e-15  # relative difference below which it is rounding
INEXACT = 1e-3  # the same where means are inexact
LIMIT = 1e-9  # the same for very long signals, whose means are less exact
ROWS_AT_ONCE = 4096
FAR = 10.0 ** np.arange(1, 10)  # arguments at which an activation must be a number


def fixed_length(phi: Activation, rate: np.ndarray, bias_var: np.ndarray) -> np.ndarray:
    """Return q* for flat arrays, with rate = weight_var / keep; inf where the length diverges."""
    if phi.homogeneous is not None:
        return homogeneous(rate * phi.homogeneous, bias_var)
    low = np.empty(len(rate))
    high = np.empty(len(rate))
    for i in range(0, len(rate), ROWS_AT_ONCE):
        some = slice(i, i + ROWS_AT_ONCE)
        on_grid = _excess(phi, rate[some], bias_var[some])
        brackets = _brackets(on_grid, bias_var[some])
        turns = turning_points(phi, rate[some], bias_var[some], on_grid, GRID, _slopes(phi))
        low[some], high[some] = _nearer(*brackets, on_grid, turns)
    endless = np.flatnonzero(np.isinf(high))
    if len(endless) and (_is_sublinear(phi) or bias_var.max() > GRID[-1] / 1e3):
        low[endless], high[endless] = _beyond(phi, rate[endless], bias_var[endless])
    if np.isinf(high).any():
        _check_far(phi)
    q = np.where(np.isfinite(high), 0.0, np.inf)
    settled = np.flatnonzero(np.isfinite(high) & (high > 0))
    settled_rate = rate[settled]
    settled_bias = bias_var[settled]

    def excess(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return _excess_at(phi, settled_rate[rows], settled_bias[rows], x)

    q[settled] = bracketed(excess, low[settled], high[settled])
    return q


def all_fixed_lengths(phi: Activation, rate: float, bias_var: float) -> list[float]:
    """Return every q with q' = q on the grid, and 0 if it is a fixed point.

    Homogeneous activations have at most one that is isolated.
    """
    fixed_points = []
    if bias_var == 0 and rate * float(phi.second_moment(0.0)) == 0:
        fixed_points.append(0.0)
    if phi.homogeneous is not None:
        q = float(homogeneous(np.array([rate * phi.homogeneous]), np.array([bias_var]))[0])
        if 0 < q < np.inf:
            fixed_points.append(q)
        return fixed_points
    problem = (np.array([rate]), np.array([bias_var]))
    excess = _excess(phi, *problem)
    sign = np.sign(excess[0])
    at = np.flatnonzero(sign[:-1] * sign[1:] < 0)
    on = 1 + np.flatnonzero(sign[:-2] * sign[2:] < 0)
    turns = turning_points(phi, *problem, excess, GRID, _slopes(phi))[0]
    pairs = np.flatnonzero(np.isfinite(turns))
    low = np.concatenate([GRID[at], GRID[pairs], turns[pairs]])
    high = np.concatenate([GRID[at + 1], turns[pairs], GRID[pairs + 1]])
    between = bracketed(lambda q, _: _excess_at(phi, rate, bias_var, q), low, high)
    fixed_points.extend(map(float, between))
    fixed_points.extend(map(float, GRID[on[sign[on] == 0]]))
    settled = float(fixed_length(phi, *problem)[0])
    if np.isfinite(settled) and not np.isclose(settled, fixed_points, rtol=1e-9, atol=0).any():
        fixed_points.append(settled)  # beyond the grid
    return sorted(fixed_points)


def length_slope(phi: Activation, rate: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return dq'/dq to about seven digits; its absolute value is below 1 if q is stable."""
    if phi.homogeneous is not None:
        return rate * phi.homogeneous
    q = np.clip(q, 1e-12, 1e150)
    step = 1e-4 * q
    with np.errstate(invalid="ignore", over="ignore"):
        difference = phi.second_moment(q + step) - phi.second_moment(q - step)
        return np.nan_to_num(rate * difference / (2 * step), nan=np.inf)


def homogeneous(slope: np.ndarray, bias_var: np.ndarray) -> np.ndarray:
    """Return the fixed point of q' = slope q + bias_var.

    With slope 1 and no bias every length is a fixed point, and the result is 1.
    """
    decays = slope < 1
    q = np.where(decays, bias_var / np.where(decays, 1 - slope, 1.0), np.inf)
    return np.where((slope == 1) & (bias_var == 0), 1.0, q)


def _excess(phi: Activation, rate: np.ndarray, bias_var: np.ndarray) -> np.ndarray:
    """Return q' - q on the grid, (problems, grid), with rounding set to zero."""
    excess = _grown(rate, _moments(phi), bias_var) - GRID
    noise = np.full((len(rate), len(GRID)), NOISE * GRID)
    noise[:, phi.exact_up_to() < GRID] *= INEXACT / NOISE
    short = short_signals(phi)
    below = SHORT > GRID
    if short is not None:
        short_excess, short_noise = short.excess(rate[:, None], bias_var[:, None], GRID[below])
        excess[:, below] = short_excess
        noise[:, below] = short_noise
    return np.where(np.abs(excess) <= noise, 0.0, excess)


def _excess_at(
    phi: Activation, rate: np.ndarray | float, bias_var: np.ndarray | float, q: np.ndarray
) -> np.ndarray:
    """Return q' - q at one length for each problem."""
    with np.errstate(invalid="ignore"):
        excess = np.where(rate == 0, 0.0, rate * phi.second_moment(q)) + bias_var - q
    short = short_signals(phi)
    if short is None:
        return excess
    return np.where(q < SHORT, short.excess(rate, bias_var, np.minimum(q, SHORT))[0], excess)


def _brackets(excess: np.ndarray, bias_var: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (low, high) around q*; (0, 0) if it is zero, (inf, inf) if there is none."""
    above = excess[:, ONE:] < 0
    below = excess[:, : ONE + 1] > 0  # not the rounding of a slow divergence
    up = np.argmax(above, axis=1)
    down = ONE - np.argmax(below[:, ::-1], axis=1)
    grows = excess[:, ONE] > 0
    low = np.where(grows, GRID[ONE + up - 1], np.where(below.any(axis=1), GRID[down], bias_var))
    next_up = np.minimum(down + 1, len(GRID) - 1)
    small = np.where(bias_var > 0, GRID[0], 0.0)
    high = np.where(grows, GRID[ONE + up], np.where(below.any(axis=1), GRID[next_up], small))
    low = np.where(excess[:, ONE] == 0, 1.0, low)
    high = np.where(excess[:, ONE] == 0, 1.0, high)
    never = grows & ~above.any(axis=1)
    return np.where(never, np.inf, low), np.where(never, np.inf, high)


def _nearer(
    low: np.ndarray, high: np.ndarray, excess: np.ndarray, turns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return brackets of the first of a close pair that is nearer to length 1, else (low, high)."""
    cells = np.arange(turns.shape[1])
    grows = excess[:, ONE] > 0
    shrinks = excess[:, ONE] < 0
    up = np.isfinite(turns) & (cells >= ONE) & (GRID[1:] <= low[:, None]) & grows[:, None]
    down = np.isfinite(turns) & (cells < ONE) & (GRID[:-1] >= high[:, None]) & shrinks[:, None]
    low = low.copy()
    high = high.copy()
    rows = np.flatnonzero(up.any(axis=1))
    first = np.argmax(up[rows], axis=1)
    low[rows] = GRID[first]
    high[rows] = turns[rows, first]
    rows = np.flatnonzero(down.any(axis=1))
    last = turns.shape[1] - 1 - np.argmax(down[rows, ::-1], axis=1)
    low[rows] = turns[rows, last]
    high[rows] = GRID[last + 1]
    return low, high


def _beyond(
    phi: Activation, rate: np.ndarray, bias_var: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (low, high) around a fixed point beyond the grid; (inf, inf) if there is none.

    Bounded activations have one.
    """
    above = _grown(rate, _moments_beyond(phi), bias_var) < (1 - LIMIT) * BEYOND
    first = np.maximum(np.argmax(above, axis=1), 1)
    exists = above.any(axis=1)
    low = np.where(exists, BEYOND[np.maximum(first - 2, 0)], np.inf)
    high = np.where(exists, BEYOND[first], np.inf)
    return low, high


def _is_sublinear(phi: Activation) -> bool:
    """Return whether E phi^2 grows less than q at the end of the grid."""
    before, last = (_moments(phi) / GRID)[[-1 - PER_DECADE, -1]]
    return bool(last < 0.9 * before)


@lru_cache(maxsize=64)
def _check_far(phi: Activation) -> None:
    """Raise an InputError if phi has no value far away: lengths would seem to diverge."""
    x = np.concatenate([-FAR, FAR])
    with np.errstate(all="ignore"):
        missing = x[np.isnan(phi(x))]
    if len(missing):
        raise InputError(
            f"activation: expected a number for every real x, but {phi.name!r} returns NaN at"
            f" x = {missing[np.argmin(np.abs(missing))]:g}, which signals reach; write it without"
            " overflow, or extend it with np.where",
            argument="activation",
        )


def _grown(rate: np.ndarray, moments: np.ndarray, bias_var: np.ndarray) -> np.ndarray:
    """Return q', (problems, lengths)."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(rate[:, None] > 0, rate[:, None] * moments, 0.0) + bias_var[:, None]


@lru_cache(maxsize=64)
def _moments(phi: Activation) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(phi.second_moment(GRID))


@lru_cache(maxsize=64)
def _slopes(phi: Activation) -> np.ndarray:
    return moment_slopes(phi, GRID)


@lru_cache(maxsize=64)
def _moments_beyond(phi: Activation) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(phi.second_moment(BEYOND))
