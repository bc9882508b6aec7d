"""At which correlations of two queries the averages are found, and how they are known at all others.

For two views, an average depends on the queries only through rho = F_tt' / sqrt(F_tt F_t't'), and is analytic in it: its
power series is the Mehler expansion of the softmax. So a few values of rho are enough for all pairs of tokens. Where
there are only a few to begin with they are taken as they are, and else Chebyshev points between the smallest and 1.
"""

from dataclasses import dataclass

import numpy as np

SAME = 1e-12  # correlations closer than this are one


@dataclass(frozen=True, eq=False)
class Correlations:
    nodes: np.ndarray  # (nodes,)
    weights: np.ndarray  # (nodes, queries, queries): an average at all pairs is the sum of weights * value at nodes

    def at_pairs(self, values: np.ndarray, of_query: np.ndarray) -> np.ndarray:
        """(nodes, views, views) -> (queries, queries), symmetric."""
        matrix = np.zeros(self.weights.shape[1:])
        for weight, value in zip(self.weights, values, strict=True):
            matrix += weight * value[of_query][:, of_query]
        return (matrix + matrix.T) / 2


def correlations(rho: np.ndarray, most: int) -> Correlations:
    """For the pairs `rho`, with `most` nodes or fewer."""
    rho = np.clip((rho + rho.T) / 2, -1, 1)
    np.fill_diagonal(rho, 1)
    distinct, which = np.unique(np.round(rho / SAME).astype(np.int64), return_inverse=True)
    if len(distinct) <= most:
        choice = which.reshape(rho.shape) == np.arange(len(distinct))[:, None, None]
        return Correlations(np.clip(distinct * SAME, -1, 1), choice.astype(float))
    return _chebyshev(rho, most)


def _chebyshev(rho: np.ndarray, number: int) -> Correlations:
    low, degree = rho.min(), number - 1
    angle = np.pi * np.arange(number) / degree
    half = (1 - low) / 2
    nodes = low + half * (1 + np.cos(angle))
    ends = np.where(np.isin(np.arange(number), (0, degree)), 0.5, 1.0)
    coefficients = 2 / degree * ends[:, None] * ends * np.cos(np.outer(np.arange(number), angle))  # values -> series
    polynomials = np.cos(np.arange(number)[:, None, None] * np.arccos(np.clip((rho - low) / half - 1, -1, 1)))
    return Correlations(nodes, np.tensordot(coefficients.T, polynomials, axes=1))
