"""Averages that one layer of attention needs: for which pairs of views, over which keys."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from orderone.theory.transformer.moments import FORWARD, Averages
from orderone.theory.transformer.points import RULES, rule_points
from orderone.theory.transformer.tokens import Tokens
from orderone.theory.transformer.views import Views

FEWEST = 2**7  # fewest points of a randomization
FEWEST_CONTROLLED = 2**6  # the same with control variates
MOST = 2**13  # most points of a randomization
LIGHT = 2**18  # numbers of a randomization that cost little; small problems start with these
# Largest numbers of points of all product rules, and of one; beyond, sampling is faster.
RULE_WORK = 3 * 10**7
LARGEST_RULE = 10**6


@dataclass(frozen=True, eq=False)
class Problem:
    """Averages over Gaussian scores, for some correlations of queries and pairs of views."""

    F: np.ndarray  # (points, points), kernel of the keys
    values: np.ndarray  # kernel of the values, often F
    # tangent kernels of keys and of values, by group
    along: Mapping[str, tuple[np.ndarray, np.ndarray]]
    keys: Tokens
    views: Views
    strength: float  # C_Q C_K
    nodes: np.ndarray  # correlations of two queries
    needed: np.ndarray  # (nodes, views, views), which of them for which views
    # (views, views), kernel of the queries, if every query is a view
    queries: np.ndarray | None = None

    @property
    def by_product_rules(self) -> bool:
        """Return whether scores have few enough dimensions for product rules.

        Each of two queries has one dimension less than keys.
        """
        dimensions = self.views.visible.sum(axis=1) - 1
        of_pairs = (dimensions[:, None] + dimensions).ravel()
        pairs = np.bincount(of_pairs, self.needed.sum(axis=0).ravel() / 2)
        if len(pairs) > len(RULES):
            return False
        points = [rule_points(number, self.sharpness**0.5) for number in range(len(pairs))]
        return points[-1] <= LARGEST_RULE and float(points @ pairs) <= RULE_WORK

    @property
    def sharpness(self) -> float:
        """Return the largest variance of a difference of two scores."""
        return self.strength * self._largest_difference * float(self.views.scale.max()) ** 2

    @property
    def _largest_difference(self) -> float:
        """Return the largest variance of a difference of two keys, over sequences."""
        differences = []
        for sequence in range(self.keys.sequences):
            keys = self.keys.of(sequence)
            F = self.F[keys, keys]
            differences.append(float((F.diagonal()[:, None] + F.diagonal() - 2 * F).max()))
        return max(differences)

    @property
    def first_points(self) -> int:
        """Return the number of points to begin with, a power of two."""
        if self.queries is None:
            fewest = FEWEST
        else:
            fewest = FEWEST_CONTROLLED
        numbers = self.views.visible.size * len(self.views.sequence)
        if numbers >= LIGHT:
            return fewest
        light = 1 << (LIGHT // numbers).bit_length() - 1
        return min(MOST, max(fewest, light))

    def only(self, wanted: np.ndarray) -> tuple["Problem", np.ndarray]:
        """Return the problem for some nodes and pairs of views, and a mask of the remaining keys.

        It has fewer views, and only the keys to which these attend.
        """
        active = np.asarray(wanted.any(axis=(0, 2)))
        views = self.views.only(active)
        keys = Tokens(self.keys.sequences, int(np.flatnonzero(views.visible.any(axis=0)).max()) + 1)
        remaining = self.keys.position < keys.length
        part = np.ix_(remaining, remaining)
        F = self.F[part]
        if self.values is self.F:
            values = F
        else:
            values = self.values[part]
        along = {}
        for name, (of_keys, of_values) in self.along.items():
            chosen = of_keys[part]
            along[name] = (chosen, chosen if of_values is of_keys else of_values[part])
        smaller = replace(
            self,
            F=F,
            values=values,
            along=along,
            keys=keys,
            views=replace(views, visible=views.visible[:, : keys.length]),
            needed=wanted[:, active][:, :, active],
            queries=None if self.queries is None else self.queries[active][:, active],
        )
        return smaller, remaining

    def empty(self, *first: int) -> Averages:
        """Return zeros of shape (*first, nodes, views, views)."""
        keys = [("value", FORWARD), ("square", FORWARD)]
        if self.along:
            keys += [("value", name) for name in self.along]
            keys += [("bend", name) for name in (FORWARD, *self.along)]
        return {key: np.zeros((*first, *self.needed.shape)) for key in keys}
