"""Pairs of fixed lengths that are so close that no point of a grid lies between them.

q' - q then has the same sign at two neighbours of the grid and the opposite sign in between, at its
extremum, where dq'/dq = 1. For exp, where E phi^2 = e^(2q), every stable length above 5 has such an
unstable partner less than a third above it.

An extremum is searched where dq'/dq - 1 changes its sign between two neighbours, and the tangents
there meet on the other side of zero, or nearly so.
"""

import numpy as np

from orderone.theory.activations import Activation
from orderone.theory.meanfield.roots import bracketed

STEP = 1e-5  # of differences, relative to a length
MARGIN = 0.1  # relative to a length: tangents bound convex functions only
SHORTEST = 1e-5  # below, differences of means are rounding


def moment_slopes(phi: Activation, q: np.ndarray) -> np.ndarray:
    """Return dE phi^2 / dq; inf where E phi^2 is infinite."""
    with np.errstate(invalid="ignore", over="ignore"):
        above = np.asarray(phi.second_moment(q * (1 + STEP)))
        below = np.asarray(phi.second_moment(q * (1 - STEP)))
        return np.nan_to_num((above - below) / (2 * STEP * q), nan=np.inf, posinf=np.inf)


def turning_points(
    phi: Activation,
    rate: np.ndarray,
    bias_var: np.ndarray,
    excess: np.ndarray,
    grid: np.ndarray,
    slopes: np.ndarray,
) -> np.ndarray:
    """Return extrema of q' - q whose sign differs from both neighbours, (problems, cells), or NaN.

    `excess` is q' - q on the grid, (problems, grid), and `slopes` is dE phi^2 / dq there.
    """
    problems, cells = _candidates(rate, excess, grid, slopes)
    found = np.full((len(rate), len(grid) - 1), np.nan)
    if not len(problems):
        return found

    def slope(q: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return rate[problems[rows]] * moment_slopes(phi, q) - 1

    q = bracketed(slope, grid[cells], grid[cells + 1])
    with np.errstate(over="ignore"):
        at = rate[problems] * phi.second_moment(q) + bias_var[problems] - q
    crossed = np.sign(at) != np.sign(excess[problems, cells])
    found[problems[crossed], cells[crossed]] = q[crossed]
    return found


def _candidates(
    rate: np.ndarray, excess: np.ndarray, grid: np.ndarray, slopes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of problems and of cells that may have an extremum across zero."""
    left = excess[:, :-1]
    right = excess[:, 1:]
    sign = np.sign(left)
    with np.errstate(invalid="ignore", over="ignore"):
        steep = np.where(rate[:, None] > 0, rate[:, None] * slopes, 0.0) - 1
        turns = (sign * steep[:, :-1] < 0) & (sign * steep[:, 1:] > 0)
        turns &= (sign == np.sign(right)) & (grid[:-1] >= SHORTEST)
    problems, cells = np.nonzero(turns)
    width = grid[cells + 1] - grid[cells]
    first = steep[problems, cells]
    last = steep[problems, cells + 1]
    start = left[problems, cells]
    with np.errstate(invalid="ignore", over="ignore"):
        meet = (right[problems, cells] - start - last * width) / (first - last)
        meet = np.clip(np.nan_to_num(meet, nan=np.inf), 0, width)
    height = sign[problems, cells] * (start + first * meet)
    near = height <= MARGIN * grid[cells]
    return problems[near], cells[near]
