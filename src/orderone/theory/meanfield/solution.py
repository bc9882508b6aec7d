"""Fixed points of one network, or of many at once.

    chi_1 = (weight_var / keep) E phi'(x)^2        at q*            S1 (10); (5) without dropout
    chi_2 = weight_var E phi'(x) phi'(y)           at q*, c*        S1 (6)

From layer to layer, a squared gradient grows by the factor chi_1, and a small difference from c* by
the factor chi_2. With dropout dc'/dc at c = 1 is keep chi_1, so c* does not leave 1 at chi_1 = 1.

Without bias a signal may vanish: q* = 0. The correlation is then that of the limit of small biases,
where the share of the bias in q* is 1 - (weight_var / keep) E phi^2 / q as q tends to 0. If the
length diverges, chi_1, c* and chi_2 are those of very long signals. Correlations then follow the
map of normalized signals, whose slope is chi_2 q / q'.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

from dataclasses import dataclass

import numpy as np

from orderone.theory.activations import Activation
from orderone.theory.meanfield.correlations import fixed_gap
from orderone.theory.meanfield.large_q_limit import LIMIT, large_q_limit, longest
from orderone.theory.meanfield.large_q_pairs import at_any_length
from orderone.theory.meanfield.lengths import fixed_length

TINY = 1e-30  # length that represents the limit 0

CONVERGED = "converged"
DIVERGES = "diverges"


@dataclass(frozen=True)
class Solution:
    """Fixed points as flat arrays, one entry for each network."""

    q_star: np.ndarray
    gap: np.ndarray  # 1 - c*
    chi1: np.ndarray
    chi2: np.ndarray
    slope: np.ndarray  # of the correlation map at c*: chi_2, unless lengths diverge
    status: np.ndarray  # CONVERGED or DIVERGES


def solve(
    phi: Activation, weight_var: np.ndarray, bias_var: np.ndarray, keep: np.ndarray
) -> Solution:
    """Return the fixed points for flat arrays of parameters."""
    q = fixed_length(phi, weight_var / keep, bias_var)
    finite = np.isfinite(q)
    status = np.where(finite, CONVERGED, DIVERGES).astype(object)
    # gap, chi_1, chi_2, slope: all 0 without weights, where every signal is the bias
    results = np.zeros((4, len(q)))
    rows = np.flatnonzero(finite & (weight_var > 0))
    if len(rows):
        results[:, rows] = _converged(phi, q[rows], weight_var[rows], keep[rows])
    rows = np.flatnonzero(~finite)
    if len(rows):
        results[:, rows] = _diverging(phi, weight_var[rows], keep[rows])
    gap, chi1, chi2, slope = results
    return Solution(q, gap, chi1, chi2, slope, status)


def _converged(
    phi: Activation, q: np.ndarray, weight_var: np.ndarray, keep: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return (gap, chi_1, chi_2, chi_2) at finite lengths."""
    q = np.maximum(q, TINY)
    slope = _times(weight_var, phi.derivative_moment(q))
    share = weight_var * (phi.second_moment(q) / q)
    at = at_any_length(phi, q)
    gap = fixed_gap(at, share, keep, slope)
    apart = np.flatnonzero(gap > 0)
    chi2 = np.array(slope)
    if len(apart):
        chi2[apart] = weight_var[apart] * at.select(apart).derivative_pair(gap[apart])
    return gap, slope / keep, chi2, chi2


def _diverging(phi: Activation, weight_var: np.ndarray, keep: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return (gap, chi_1, chi_2, slope) where lengths diverge.

    The bias is negligible: c' = keep (1 - G). Equal keep rates share one limit. If E phi^2 is
    infinite, the correlation is 0. If phi jumps, chi_1 and chi_2 are infinite.
    """
    jumps = np.isinf(phi.derivative_moment(1.0))
    phi = large_q_limit(phi)
    q = longest(phi)
    if np.isinf(phi.second_moment(q)):
        infinite = np.full(len(keep), np.inf)
        return np.ones(len(keep)), infinite, infinite, np.zeros(len(keep))
    slope_moment, shorter_moment = phi.derivative_moment(np.array([q, q / 1e3]))
    bounded = slope_moment < 2 * shorter_moment and not jumps
    rates, index = np.unique(keep, return_inverse=True)
    by_length = q / phi.second_moment(q)
    ratio = slope_moment * by_length
    slope_at_one = rates * np.where(np.abs(ratio - 1) < LIMIT, 1.0, ratio)
    gap = fixed_gap(phi.at(np.full(len(rates), q)), rates, rates, slope_at_one)
    slope_pair = phi.derivative_pair(q, q, gap)
    chi1 = np.where(bounded, _times(weight_var / keep, slope_moment), np.inf)
    chi2 = np.where(bounded, _times(weight_var, slope_pair[index]), np.inf)
    slope = np.where(gap > 0, rates * slope_pair * by_length, slope_at_one)
    return gap[index], chi1, chi2, slope[index]


def _times(factor: np.ndarray, moment: np.ndarray | float) -> np.ndarray:
    """Return factor times moment, where zero times infinity is zero."""
    with np.errstate(invalid="ignore"):
        return np.where(factor == 0, 0.0, factor * moment)
