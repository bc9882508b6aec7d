"""Everything about the fixed point of one network, or of many at once.

    chi_1 = (weight_var / keep) E phi'(x)^2          at q*                      S1 (10); (5) without
                                                     dropout
    chi_2 = weight_var E phi'(x) phi'(y)             at q*, c*                  S1 (6)

chi_1 is by what factor a squared gradient grows from layer to layer, chi_2 by what factor a small
difference from c* does. With dropout dc'/dc at c = 1 is keep chi_1, so chi_1 = 1 is no longer where
c* leaves 1.

Without bias a signal may die: q* = 0. The correlation is then that of the limit of small biases,
where the share of the bias in q* is 1 - (weight_var / keep) E phi^2 / q as q tends to 0. Where the
length diverges, chi_1, c* and chi_2 are those of very long signals. Correlations then settle as the
map of normalised signals says, whose slope is chi_2 q / q'.
"""

from dataclasses import dataclass

import numpy as np

from orderone.theory.activations import Activation
from orderone.theory.meanfield.correlations import fixed_gap
from orderone.theory.meanfield.large_q_limit import LIMIT, from_afar, longest
from orderone.theory.meanfield.large_q_pairs import at_any_length
from orderone.theory.meanfield.lengths import fixed_length

TINY = 1e-30  # a length that stands for the limit 0

CONVERGED = "converged"
DIVERGES = "diverges"


@dataclass(frozen=True)
class Solution:
    """Flat arrays, one entry for each network."""

    q_star: np.ndarray
    gap: np.ndarray  # 1 - c*
    chi1: np.ndarray
    chi2: np.ndarray
    slope: np.ndarray  # of the correlation map at c*: chi_2, unless lengths diverge
    status: np.ndarray  # of words


def solve(
    phi: Activation, weight_var: np.ndarray, bias_var: np.ndarray, keep: np.ndarray
) -> Solution:
    """The fixed points for flat arrays of parameters."""
    q = fixed_length(phi, weight_var / keep, bias_var)
    finite = np.isfinite(q)
    status = np.where(finite, CONVERGED, DIVERGES).astype(object)
    gap, chi1, chi2, slope = np.empty((4, len(q)))
    for rows, solver in ((np.flatnonzero(finite), _settled), (np.flatnonzero(~finite), _endless)):
        if len(rows):
            gap[rows], chi1[rows], chi2[rows], slope[rows] = solver(
                phi, q[rows], weight_var[rows], keep[rows]
            )
    return Solution(q, gap, chi1, chi2, slope, status)


def _settled(
    phi: Activation, q: np.ndarray, weight_var: np.ndarray, keep: np.ndarray
) -> tuple[np.ndarray, ...]:
    q = np.maximum(q, TINY)
    slope_moment = phi.derivative_moment(q)
    share = weight_var * (phi.second_moment(q) / q)
    return _correlate(phi, q, share, weight_var, keep, _times(weight_var, slope_moment))


def _endless(
    phi: Activation, _: np.ndarray, weight_var: np.ndarray, keep: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The bias is forgotten: c' = keep (1 - G). Equal keep rates share one limit.

    Without a second moment nothing is left of a correlation, and of a step everything is steep.
    """
    jumps = np.isinf(phi.derivative_moment(1.0))
    phi = from_afar(phi)
    long = longest(phi)
    if np.isinf(phi.second_moment(long)):
        return (
            np.ones(len(keep)),
            np.full(len(keep), np.inf),
            np.full(len(keep), np.inf),
            np.zeros(len(keep)),
        )
    moment, before = phi.derivative_moment(np.array([long, long / 1e3]))
    bounded = moment < 2 * before and not jumps
    kept, which = np.unique(keep, return_inverse=True)
    q = np.full(len(kept), long)
    by_length = long / phi.second_moment(long)
    ratio = moment * by_length
    at_one = kept * np.where(np.abs(ratio - 1) < LIMIT, 1.0, ratio)
    gap = fixed_gap(phi.at(q), kept, kept, at_one)
    slopes = phi.derivative_pair(long, long, gap)
    chi1, chi2 = (
        np.where(bounded, _times(w, m), np.inf)
        for w, m in ((weight_var / keep, moment), (weight_var, slopes[which]))
    )
    return gap[which], chi1, chi2, np.where(gap > 0, kept * slopes * by_length, at_one)[which]


def _correlate(
    phi: Activation,
    q: np.ndarray,
    share: np.ndarray,
    weight_var: np.ndarray,
    keep: np.ndarray,
    slope: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """(gap, chi_1, chi_2, chi_2)."""
    at = at_any_length(phi, q)
    gap = fixed_gap(at, share, keep, slope)
    apart = np.flatnonzero(gap > 0)
    chi2 = np.array(slope)
    if len(apart):
        chi2[apart] = weight_var[apart] * at.select(apart).derivative_pair(gap[apart])
    return gap, slope / keep, chi2, chi2


def _times(factor: np.ndarray, moment: np.ndarray | float) -> np.ndarray:
    """factor times moment, where nothing times infinity is nothing."""
    with np.errstate(invalid="ignore"):
        return np.where(factor == 0, 0.0, factor * moment)
