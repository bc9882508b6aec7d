"""At which correlations of two queries the averages are found, and how they are known at all others.

For two views, an average depends on the queries only through rho = F_tt' / sqrt(F_tt F_t't'), and is analytic in it: its
power series is the Mehler expansion of the softmax. So a few values of rho are enough for all pairs of tokens. Where
there are only a few to begin with they are taken as they are, and else Chebyshev points between the smallest and 1.
"""

from dataclasses import dataclass

import numpy as np

NODES = ((1.5, 5, 17), (4.0, 8, 17), (16.0, 13, 33), (np.inf, 25, 33))  # C_Q C_K up to; if sampled; if not
SAME = 1e-12  # correlations closer than this are one


@dataclass(frozen=True, eq=False)
class Correlations:
    nodes: np.ndarray  # (nodes,)
    weights: np.ndarray  # (nodes, queries, queries): an average at all pairs is the sum of weights * value at nodes

    def needed(self, of_query: np.ndarray) -> np.ndarray:
        """(nodes, views, views): whether a node has any weight for some queries of two views."""
        number = of_query.max() + 1
        flat = (of_query[:, None] * number + of_query).ravel()
        counts = [np.bincount(flat, weight.ravel() != 0, number**2) for weight in self.weights]
        return np.reshape(counts, (-1, number, number)) > 0

    def at_pairs(self, values: np.ndarray, of_query: np.ndarray) -> np.ndarray:
        """(nodes, views, views) -> (queries, queries), symmetric."""
        matrix = np.zeros(self.weights.shape[1:])
        for weight, value in zip(self.weights, values, strict=True):
            matrix += weight * value[of_query][:, of_query]
        return (matrix + matrix.T) / 2


def node_count(sharpness: float, precise: bool) -> int:
    """How many nodes keep the error of interpolation below that of the averages: more, the sharper attention is."""
    _, few, many = next(row for row in NODES if sharpness <= row[0])
    return many if precise else few


def correlations(rho: np.ndarray, most: int) -> Correlations:
    """For the pairs `rho`, with `most` nodes or fewer."""
    rho = np.clip((rho + rho.T) / 2, -1, 1)
    np.fill_diagonal(rho, 1)
    steps = np.round(rho / SAME).astype(np.int64)
    if len(np.unique(steps[: most + 1])) > most:  # most often, a few rows show that already
        return _chebyshev(rho, most)
    distinct, which = np.unique(steps, return_inverse=True)
    if len(distinct) > most:
        return _chebyshev(rho, most)
    choice = which.reshape(rho.shape) == np.arange(len(distinct))[:, None, None]
    return Correlations(np.clip(distinct * SAME, -1, 1), choice.astype(float))


def _chebyshev(rho: np.ndarray, number: int) -> Correlations:
    low, degree = rho.min(), number - 1
    angle = np.pi * np.arange(number) / degree
    half = (1 - low) / 2
    nodes = low + half * (1 + np.cos(angle))
    ends = np.where(np.isin(np.arange(number), (0, degree)), 0.5, 1.0)
    coefficients = 2 / degree * ends[:, None] * ends * np.cos(np.outer(np.arange(number), angle))  # values -> series
    polynomials = [np.ones_like(rho), (rho - low) / half - 1]
    while len(polynomials) < number:
        polynomials.append(2 * polynomials[1] * polynomials[-1] - polynomials[-2])
    return Correlations(nodes, np.tensordot(coefficients.T, np.stack(polynomials), axes=1))
