"""Fixed points of the correlation map at the length q*.

    c' = [weight_var E phi(x) phi(y) + bias_var] / q*                                    S1 (3), (4)

With (2) for q*, the gap g = 1 - c obeys an equation without cancellation,

    g' = A [1/keep - 1 + G(g)]
    A  = weight_var E phi^2 / q*
    G  = 1 - E phi(x) phi(y) / E phi^2

All Taylor coefficients of c' in c are nonnegative (Mehler), so c' is convex on [0, 1]. With dropout
there is exactly one fixed point, c* < 1, which attracts. Without dropout, c = 1 is a fixed point.
It attracts if chi_1 <= 1; if chi_1 > 1, there is exactly one other in [0, 1), which attracts
(erratum S1.1: the paper has c* = 1 in both cases). Fixed points below 0 need an odd phi without
bias or dropout, where c' is odd: -1 mirrors 1, and c* is 0.

g'/g - 1 falls monotonically in g, so its root can be bracketed. A chord of the convex map gives one
end.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

import numpy as np

from orderone.theory.activations import AtLength
from orderone.theory.meanfield.roots import bracketed

SMALLEST = 1e-305
ROUNDING = 4e-15  # rounding of a slope of 1
STEP = 2.0  # first step of log g from the chord to beyond the root; it doubles


def fixed_gap(
    at: AtLength, share: np.ndarray, keep: np.ndarray, slope_at_one: np.ndarray
) -> np.ndarray:
    """Return g* for flat arrays; `share` is A, and `slope_at_one` is dc'/dc at c = 1."""
    loss = 1 / keep - 1
    gap = np.zeros(len(share))
    rows = np.flatnonzero((share > 0) & ((loss > 0) | (slope_at_one > 1 + ROUNDING)))
    if not len(rows):
        return gap
    part = at.select(rows)
    A = share[rows]
    r = loss[rows]
    growth = _Growth(part, A, r)
    chord = _chord(part, A, r, slope_at_one[rows])
    low, high = _bracket(growth, chord, r > 0)
    gap[rows] = np.exp(bracketed(growth, low, high))
    return gap


class _Growth:
    """Function g'/g - 1 of log g, for some of the rows."""

    def __init__(self, at: AtLength, A: np.ndarray, r: np.ndarray) -> None:
        self.at = at
        self.A = A
        self.r = r

    def __call__(self, log_gap: np.ndarray, rows: np.ndarray) -> np.ndarray:
        gap = np.exp(log_gap)
        if len(rows) == len(self.A):
            at = self.at
        else:
            at = self.at.select(rows)
        return self.A[rows] * (self.r[rows] + at.output_gap(gap)) / gap - 1


def _chord(at: AtLength, A: np.ndarray, r: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Return the fixed point of the chord of the map from c = 0 to c = 1."""
    end = A * (r + at.output_gap(np.ones(len(A))))  # g' at g = 1, at most 1
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        chord = np.where(r > 0, A * r / (A * r + 1 - end), (slope - 1) / (slope - end))
    return np.clip(np.nan_to_num(chord, nan=1.0, posinf=1.0), SMALLEST, 1.0)


def _bracket(
    growth: _Growth, chord: np.ndarray, dropout: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return logarithms of (low, high).

    The chord is above the root without dropout and below it with dropout. Growing steps from it
    lead to the other end.
    """
    near = np.log(chord)
    far = np.log(chord)
    rows = np.arange(len(chord))
    step = STEP
    while len(rows):
        far[rows] = np.clip(far[rows] + np.where(dropout[rows], step, -step), np.log(SMALLEST), 0.0)
        step *= 2
        crossed = np.sign(growth(far[rows], rows)) != np.where(dropout[rows], 1, -1)
        at_end = (far[rows] == 0) | (far[rows] == np.log(SMALLEST))
        near[rows] = np.where(crossed | at_end, near[rows], far[rows])
        rows = rows[~(crossed | at_end)]
    rounding = 1e-9  # rounding of the chord, which may be the root
    near = np.minimum(near + np.where(dropout, -rounding, rounding), 0.0)
    return np.where(dropout, near, far), np.where(dropout, far, near)
