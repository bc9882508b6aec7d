"""Correlations of two queries at which averages are computed, and interpolation to all others.

For two views, an average depends on the queries only through rho = F_tt' / sqrt(F_tt F_t't'), and
is analytic in it: its power series is the Mehler expansion of the softmax. So a few values of rho
are enough for all pairs of tokens. If there are only a few different values, they are used directly
(`Distinct`); otherwise averages are interpolated by a polynomial between Chebyshev points from the
smallest value to 1 (`Chebyshev`).
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

NODES = (  # largest C_Q C_K; number of nodes with sampling; without
    (1.5, 5, 17),
    (4.0, 8, 17),
    (16.0, 13, 33),
    (np.inf, 25, 33),
)
SAME = 1e-12  # correlations closer than this are one


@dataclass(frozen=True, eq=False)
class Distinct:
    """Few different correlations, used directly."""

    nodes: np.ndarray  # (nodes,)
    node_of_pair: np.ndarray  # (queries, queries), index of a pair's node

    def needed(self, of_query: np.ndarray) -> np.ndarray:
        """Return (nodes, views, views): whether queries of two views have this correlation."""
        views = of_query.max() + 1
        result = np.zeros((len(self.nodes), views, views), bool)
        result[self.node_of_pair, of_query[:, None], of_query] = True
        return result

    def at_pairs(self, values: np.ndarray, of_query: np.ndarray) -> np.ndarray:
        """Spread (nodes, views, views) to (queries, queries), symmetric."""
        return _symmetric(values[self.node_of_pair, of_query[:, None], of_query])


@dataclass(frozen=True, eq=False)
class Chebyshev:
    """Many correlations, interpolated between Chebyshev points."""

    nodes: np.ndarray  # (nodes,), from 1 down to the smallest correlation
    rho: np.ndarray  # (queries, queries)

    def needed(self, of_query: np.ndarray) -> np.ndarray:
        """Return (nodes, views, views): every pair of views needs all nodes."""
        views = of_query.max() + 1
        return np.ones((len(self.nodes), views, views), bool)

    def at_pairs(self, values: np.ndarray, of_query: np.ndarray) -> np.ndarray:
        """Spread (nodes, views, views) to (queries, queries), symmetric.

        The result is a sum of polynomials T_k, by their recurrence.
        """
        series = np.tensordot(_series(len(values)), values, axes=1)
        low = self.nodes[-1]
        high = self.nodes[0]
        x = (2 * self.rho - low - high) / (high - low)
        matrix = _spread(series[0], of_query)
        before = np.ones_like(x)
        now = x
        for coefficients in series[1:]:
            matrix += now * _spread(coefficients, of_query)
            after = 2 * x * now - before
            before = now
            now = after
        return _symmetric(matrix)


class Each:
    """Every pair of queries separately: each query is a view, drawn with its correlations."""

    def at_pairs(self, values: np.ndarray, of_query: np.ndarray) -> np.ndarray:
        """Spread (1, views, views) to (queries, queries), symmetric."""
        return _symmetric(values[0][of_query][:, of_query])


Correlations: TypeAlias = Distinct | Chebyshev | Each


def node_count(sharpness: float, precise: bool) -> int:
    """Return the number of nodes for which interpolation is more accurate than the averages.

    Sharper attention needs more nodes.
    """
    _, few, many = next(row for row in NODES if sharpness <= row[0])
    return many if precise else few


def correlations(rho: np.ndarray, most: int) -> Distinct | Chebyshev:
    """Return the nodes for the pairs `rho`: `most` of them or fewer."""
    rho = np.clip(_symmetric(rho), -1, 1)
    np.fill_diagonal(rho, 1)
    steps = np.round(rho / SAME).astype(np.int64)
    if len(np.unique(steps[: most + 1])) > most:  # usually a few rows are enough to decide
        return _chebyshev(rho, most)
    distinct, node_of_pair = np.unique(steps, return_inverse=True)
    if len(distinct) > most:
        return _chebyshev(rho, most)
    return Distinct(np.clip(distinct * SAME, -1, 1), node_of_pair.reshape(rho.shape))


def _chebyshev(rho: np.ndarray, number: int) -> Chebyshev:
    low = float(rho.min())
    points = np.cos(np.pi * np.arange(number) / (number - 1))
    return Chebyshev(low + (1 - low) / 2 * (1 + points), rho)


def _spread(values: np.ndarray, of_query: np.ndarray) -> np.ndarray:
    """Spread (views, views) to (queries, queries).

    It is faster if queries of one view are adjacent.
    """
    if (np.diff(of_query) < 0).any():
        return values[of_query][:, of_query]
    number = np.bincount(of_query, minlength=len(values))
    return values.repeat(number, axis=0).repeat(number, axis=1)


def _series(number: int) -> np.ndarray:
    """Return (number, number): from values at the nodes to coefficients of T_0, T_1, ..."""
    k = np.arange(number)
    ends = np.where((k == 0) | (k == number - 1), 0.5, 1.0)
    return 2 / (number - 1) * ends[:, None] * ends * np.cos(np.pi * np.outer(k, k) / (number - 1))


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return (matrix + matrix.T) / 2
