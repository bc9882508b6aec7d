"""Everything about the fixed point of one network, or of many at once.

    chi_1 = (weight_var / keep) E phi'(x)^2          at q*                      S1 (10); (5) without dropout
    chi_2 = weight_var E phi'(x) phi'(y)             at q*, c*                  S1 (6)

chi_1 is by what factor a squared gradient grows from layer to layer, chi_2 by what factor a small difference from c*
does. With dropout dc'/dc at c = 1 is keep chi_1, so chi_1 = 1 is no longer where c* leaves 1.

Without bias a signal may die: q* = 0. The correlation is then that of the limit of small biases, where the share of the
bias in q* is 1 - (weight_var / keep) E phi^2 / q as q tends to 0. Where the length diverges, chi_1, c* and chi_2 are
those of very long signals.
"""

from dataclasses import dataclass

import numpy as np

from orderone.theory.activations import Activation
from orderone.theory.meanfield.afar import LIMIT, from_afar, longest
from orderone.theory.meanfield.correlations import fixed_gap
from orderone.theory.meanfield.lengths import fixed_length

TINY = 1e-30  # a length that stands for the limit 0

CONVERGED, DIVERGES = "converged", "diverges"


@dataclass(frozen=True)
class Solution:
    """Flat arrays, one entry for each network."""

    q_star: np.ndarray
    gap: np.ndarray  # 1 - c*
    chi1: np.ndarray
    chi2: np.ndarray
    status: np.ndarray  # of words


def solve(phi: Activation, weight_var: np.ndarray, bias_var: np.ndarray, keep: np.ndarray) -> Solution:
    """The fixed points for flat arrays of parameters."""
    q = fixed_length(phi, weight_var / keep, bias_var)
    finite = np.isfinite(q)
    status = np.where(finite, CONVERGED, DIVERGES).astype(object)
    gap, chi1, chi2 = np.empty((3, len(q)))
    for rows, solver in ((np.flatnonzero(finite), _settled), (np.flatnonzero(~finite), _endless)):
        if len(rows):
            gap[rows], chi1[rows], chi2[rows] = solver(phi, q[rows], weight_var[rows], keep[rows])
    return Solution(q, gap, chi1, chi2, status)


def _settled(phi: Activation, q: np.ndarray, weight_var: np.ndarray, keep: np.ndarray) -> tuple[np.ndarray, ...]:
    q = np.maximum(q, TINY)
    slope_moment = phi.derivative_moment(q)
    share = weight_var * (phi.second_moment(q) / q)
    return _correlate(phi, q, share, weight_var, keep, _times(weight_var, slope_moment))


def _endless(phi: Activation, _: np.ndarray, weight_var: np.ndarray, keep: np.ndarray) -> tuple[np.ndarray, ...]:
    """The bias is forgotten: c' = keep (1 - G). Equal keep rates share one limit."""
    phi = from_afar(phi)
    long = longest(phi)
    slope_moment, before = phi.derivative_moment(np.array([long, long / 1e3]))
    slope_moment = slope_moment if slope_moment < 2 * before else np.inf
    kept, which = np.unique(keep, return_inverse=True)
    q, ratio = np.full(len(kept), long), slope_moment * long / phi.second_moment(long)
    gap = fixed_gap(phi.at(q), kept, kept, kept * np.where(np.abs(ratio - 1) < LIMIT, 1.0, ratio))
    slopes = phi.derivative_pair(long, long, gap) if np.isfinite(slope_moment) else np.full(len(kept), np.inf)
    return gap[which], _times(weight_var / keep, slope_moment), _times(weight_var, slopes[which])


def _correlate(
    phi: Activation, q: np.ndarray, share: np.ndarray, weight_var: np.ndarray, keep: np.ndarray, slope: np.ndarray
) -> tuple[np.ndarray, ...]:
    """(gap, chi_1, chi_2)."""
    at = phi.at(q)
    gap = fixed_gap(at, share, keep, slope)
    apart = np.flatnonzero(gap > 0)
    chi2 = np.array(slope)
    if len(apart):
        chi2[apart] = weight_var[apart] * at.select(apart).derivative_pair(gap[apart])
    return gap, slope / keep, chi2


def _times(factor: np.ndarray, moment: np.ndarray | float) -> np.ndarray:
    """factor times moment, where nothing times infinity is nothing."""
    with np.errstate(invalid="ignore"):
        return np.where(factor == 0, 0.0, factor * moment)
