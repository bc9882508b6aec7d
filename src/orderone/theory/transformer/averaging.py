"""The averages of `moments` for all pairs of views, at some correlations of their queries.

Few keys: trapezoidal products, one for each pair of views, good to eight digits. Many keys: randomized Sobol points,
shared by all pairs. Eight randomizations differ by their error, and their number of points grows until that is below
`accuracy`, in units of the largest entry of F, which is about 1; only for those pairs that need it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from orderone.theory.transformer.moments import FORWARD, Averages, moments, softmax
from orderone.theory.transformer.points import REPETITIONS, RULES, fields, principal, product_rule, rule_points
from orderone.theory.transformer.tokens import Tokens
from orderone.theory.transformer.views import Views

FEWEST, MOST = 2**7, 2**13  # points of a randomization
LIGHT = 2**18  # numbers of a randomization that are no work; small problems start with more points
HELD = 2**23  # numbers, of the attention of all views
RULE_WORK, LARGEST_RULE = 3 * 10**7, 10**6  # points of all product rules, and of one; beyond, sampling is faster


@dataclass(frozen=True, eq=False)
class Problem:
    """What there is to average."""

    F: np.ndarray  # (points, points), kernel of the keys
    along: Mapping[str, np.ndarray]  # tangent kernels of the keys
    keys: Tokens
    views: Views
    strength: float  # C_Q C_K
    nodes: np.ndarray  # correlations of two queries
    needed: np.ndarray  # (nodes, views, views), which of them for which views

    @property
    def by_product_rules(self) -> bool:
        """Whether scores have few enough dimensions: one less than keys, for each of two queries."""
        dimensions = self.views.visible.sum(axis=1) - 1
        pairs = np.bincount((dimensions[:, None] + dimensions).ravel(), self.needed.sum(axis=0).ravel() / 2)
        if len(pairs) > len(RULES):
            return False
        spread = (self.strength * self._largest_difference) ** 0.5 * float(self.views.scale.max())
        points = [rule_points(number, spread) for number in range(len(pairs))]
        return points[-1] <= LARGEST_RULE and float(points @ pairs) <= RULE_WORK

    @property
    def _largest_difference(self) -> float:
        """The largest variance of a difference of two keys, over sequences."""
        blocks = [self.F[keys, keys] for keys in map(self.keys.of, range(self.keys.sequences))]
        return max(float((F.diagonal()[:, None] + F.diagonal() - 2 * F).max()) for F in blocks)

    @property
    def first_points(self) -> int:
        numbers = self.views.visible.size * len(self.views.sequence)
        return min(MOST, max(FEWEST, 1 << (LIGHT // numbers).bit_length() - 1 if numbers < LIGHT else FEWEST))

    def only(self, wanted: np.ndarray) -> tuple["Problem", np.ndarray]:
        """What is left to do for some nodes and pairs of views: fewer views, and no more keys than these can see.

        Also which keys are left, of all sequences.
        """
        active = np.asarray(wanted.any(axis=(0, 2)))
        views = self.views.only(active)
        keys = Tokens(self.keys.sequences, int(np.flatnonzero(views.visible.any(axis=0)).max()) + 1)
        kept = self.keys.position < keys.length
        views = replace(views, visible=views.visible[:, : keys.length])
        F, along = self.F[kept][:, kept], {name: M[kept][:, kept] for name, M in self.along.items()}
        return Problem(F, along, keys, views, self.strength, self.nodes, wanted[:, active][:, :, active]), kept

    def empty(self) -> Averages:
        """Zeros of shape (nodes, views, views)."""
        names = [(kind, name) for kind in ("value", "bend") for name in (FORWARD, *self.along)] if self.along else []
        return {key: np.zeros(self.needed.shape) for key in [("value", FORWARD), ("square", FORWARD), *names]}


def averages(problem: Problem, accuracy: float, seed: int) -> tuple[Averages, float]:
    """For every node and pair of views; and the largest standard error of values, in units of the largest F."""
    if problem.by_product_rules:
        return _by_product_rules(problem), 0.0
    factor, unit = principal(problem.F, problem.keys.length), float(np.abs(problem.F).max()) or 1.0
    points, result, errors = problem.first_points, problem.empty(), np.full(problem.needed.shape, np.inf)
    while True:
        wanted = problem.needed & (errors > accuracy)
        chosen, kept = problem.only(wanted)
        found, by_repetition = _sampled(chosen, *fields(factor[kept], points, seed))
        spread = by_repetition.std(axis=0, ddof=1) / REPETITIONS**0.5 / unit
        errors[wanted] = np.maximum(spread, spread.transpose(0, 2, 1))[chosen.needed]
        for key, values in found.items():
            result[key][wanted] = values[chosen.needed]
        error = float(errors[problem.needed].max())
        if error <= accuracy or points >= MOST:
            return result, error
        points = min(MOST, points * 2 ** max(1, round(np.log2(error / accuracy))))


def _by_product_rules(problem: Problem) -> Averages:
    result = problem.empty()
    for node, i, j in np.argwhere(problem.needed).tolist():
        if i <= j:
            _add(result, node, slice(i, i + 1), slice(j, j + 1), _pair(problem, float(problem.nodes[node]), i, j))
    return result


def _pair(problem: Problem, rho: float, i: int, j: int) -> Averages:
    """Of two views, over the keys that they see."""
    views, keys, F = problem.views, problem.keys, problem.F
    a, b = (np.arange(keys.points)[keys.of(int(views.sequence[v]))][views.visible[v]] for v in (i, j))
    one, other = views.scale[i], views.scale[j]
    own, cross, theirs = F[np.ix_(a, a)] * one**2, F[np.ix_(a, b)] * (rho * one * other), F[np.ix_(b, b)] * other**2
    x, y, weight = product_rule(problem.strength * own, problem.strength * cross, problem.strength * theirs)
    p, q = (softmax(scores, np.ones((1, scores.shape[1]), bool), np.ones(1)) for scores in (x, y))
    return moments(p, q, weight, F[np.ix_(a, b)], {name: M[np.ix_(a, b)] for name, M in problem.along.items()})[0]


def _sampled(problem: Problem, x: np.ndarray, z: np.ndarray) -> tuple[Averages, np.ndarray]:
    """The averages, and the values of each repetition: (repetitions, nodes, views, views)."""
    result, values = problem.empty(), np.zeros((REPETITIONS, *problem.needed.shape))
    blocks = list(_blocks(problem))
    for part in _portions(x.shape[1], problem.views.visible.size):
        fields_x, fields_z = x[part].reshape(-1, x.shape[2]), z[part].reshape(-1, x.shape[2])
        weight = np.full(len(fields_x), 1 / (REPETITIONS * x.shape[1]), np.float32)
        p = _attention(problem, fields_x)
        for node in np.flatnonzero(problem.needed.any(axis=(1, 2))).tolist():
            rho = np.float32(problem.nodes[node])
            q = p if rho == 1 else _attention(problem, rho * fields_x + np.sqrt(1 - rho * rho) * fields_z)
            for block in blocks:
                if problem.needed[node, block.rows, block.columns].any():
                    found, each = moments(p[block.a], q[block.b], weight, block.F, block.along)
                    _add(result, node, block.rows, block.columns, found)
                    shared = each.reshape(x[part].shape[0], -1, *each.shape[1:]).sum(axis=1) / x.shape[1]
                    values[part[0], node, block.rows, block.columns] += shared
                    if block.a != block.b:
                        values[part[0], node, block.columns, block.rows] += shared.transpose(0, 2, 1)
    return result, values


def _portions(points: int, numbers: int) -> Iterator[tuple[slice, slice]]:
    """Repetitions and points that fit into memory: whole repetitions, or parts of one."""
    at_once = max(1, HELD // numbers)
    repetitions, step = max(1, at_once // points), min(points, at_once)
    for first in range(0, REPETITIONS, repetitions):
        for start in range(0, points, step):
            yield slice(first, first + repetitions), slice(start, start + step)


class _Block(NamedTuple):
    """Two sequences, their views, and the kernels between their keys."""

    a: int
    b: int
    rows: slice
    columns: slice
    F: np.ndarray
    along: Mapping[str, np.ndarray]


def _blocks(problem: Problem) -> Iterator[_Block]:
    keys, within = problem.keys, problem.views.within
    for a in range(keys.sequences):
        for b in range(a, keys.sequences):
            part = np.s_[keys.of(a), keys.of(b)]
            along = {name: M[part].astype(np.float32) for name, M in problem.along.items()}
            yield _Block(a, b, within(a), within(b), problem.F[part].astype(np.float32), along)


def _attention(problem: Problem, field: np.ndarray) -> list[np.ndarray]:
    """Of every sequence: (points, views, keys)."""
    views, root = problem.views, problem.strength**0.5
    result = []
    for sequence in range(problem.keys.sequences):
        own, keys = views.within(sequence), problem.keys.of(sequence)
        result.append(softmax(field[:, keys], views.visible[own], root * views.scale[own]))
    return result


def _add(result: Averages, node: int, rows: slice, columns: slice, found: Averages) -> None:
    """Into both triangles; a pair of a sequence with itself is its own mirror image."""
    for key, block in found.items():
        target = result[key][node]
        if rows == columns:
            target[rows, columns] += (block + block.T) / 2
        else:
            target[rows, columns] += block
            target[columns, rows] += block.T
