"""The averages of `moments` for all pairs of views, at some correlations: by product rules, or by quasi-Monte Carlo.

Few keys: Gauss-Hermite products, one for each pair of views, good to about nine digits. Many keys: randomized Sobol points,
shared by all pairs; eight randomizations differ by their error, and their number of points doubles until that is below
`accuracy`, in units of the largest average.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from orderone.theory.transformer.moments import FORWARD, Averages, moments, softmax
from orderone.theory.transformer.points import REPETITIONS, RULES, Scores, dimensions, fields, product_rule
from orderone.theory.transformer.tokens import Tokens
from orderone.theory.transformer.views import Views

FEWEST, MOST = 2**7, 2**13  # points of a randomization
HELD = 2**23  # numbers, of the attention of all views at once


@dataclass(frozen=True, eq=False)
class Problem:
    """What there is to average."""

    F: np.ndarray  # (points, points), kernel of the keys
    along: Mapping[str, np.ndarray]  # tangent kernels of the keys
    keys: Tokens
    views: Views
    strength: float  # C_Q C_K
    nodes: np.ndarray  # correlations of two queries

    def pairs(self) -> Iterator[tuple[int, int]]:
        return ((a, b) for a in range(self.keys.sequences) for b in range(a, self.keys.sequences))

    def between(self, a: int, b: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """F and the tangent kernels between the keys of two sequences."""
        block = np.s_[self.keys.of(a), self.keys.of(b)]
        return self.F[block], {name: kernel[block] for name, kernel in self.along.items()}

    @property
    def by_product_rules(self) -> bool:
        """Whether no pair of views needs more dimensions than there are rules for."""
        most = max(int(self.views.visible.sum(axis=1).max()) - 1, 0)
        if most * 2 < len(RULES):
            return True
        return most < 64 and 2 * max(dimensions(self.F[s, s]) for s in map(self.keys.of, range(self.keys.sequences))) < len(RULES)  # fmt: skip

    def empty(self) -> Averages:
        """Zeros of shape (nodes, views, views)."""
        names = [(kind, name) for kind in ("value", "bend") for name in (FORWARD, *self.along)] if self.along else []
        shape = (len(self.nodes), len(self.views.sequence), len(self.views.sequence))
        return {key: np.zeros(shape) for key in {("value", FORWARD), ("square", FORWARD), *names}}


def averages(problem: Problem, accuracy: float, seed: int) -> tuple[Averages, float]:
    """For every node, pair of views and kernel; and the standard error of the values, relative to the largest."""
    if problem.by_product_rules:
        return _by_product_rules(problem), 0.0
    points = FEWEST
    while True:
        found = [_sampled(problem, x, z) for x, z in fields(problem.F, problem.keys.length, points, seed)]
        mean = {key: np.mean([part[key] for part in found], axis=0) for key in found[0]}
        values = np.stack([part["value", FORWARD] for part in found])
        error = values.std(axis=0, ddof=1).max() / REPETITIONS**0.5 / max(np.abs(values).max(), 1e-300)
        if error <= accuracy or points >= MOST:
            return mean, float(error)
        points *= 2


def _by_product_rules(problem: Problem) -> Averages:
    result, views = problem.empty(), problem.views
    for k, rho in enumerate(problem.nodes):
        for i, a in enumerate(views.sequence):
            for j in range(i, len(views.sequence)):
                _write(result, k, [i], [j], _exact_pair(problem, rho, i, j))
    return result


def _exact_pair(problem: Problem, rho: float, i: int, j: int) -> Averages:
    views, keys = problem.views, problem.keys
    a, b = (np.arange(keys.points)[keys.of(views.sequence[v])][views.visible[v]] for v in (i, j))
    size, other = views.scale[i] * problem.strength**0.5, views.scale[j] * problem.strength**0.5
    F = problem.F
    x, y, weight = product_rule(
        size**2 * F[np.ix_(a, a)], rho * size * other * F[np.ix_(a, b)], other**2 * F[np.ix_(b, b)]
    )
    p, q = (softmax(scores, np.ones((1, scores.shape[1]), bool), np.ones(1)) for scores in (x, y))
    return moments(p, q, weight, F[np.ix_(a, b)], {name: M[np.ix_(a, b)] for name, M in problem.along.items()})


def _sampled(problem: Problem, x: np.ndarray, z: np.ndarray) -> Averages:
    """From one randomization, in portions that fit into memory."""
    size = problem.views.visible.size
    portion = max(1, min(len(x), HELD // size))
    result = problem.empty()
    for first in range(0, len(x), portion):
        part = np.s_[first : first + portion]
        _add_portion(result, problem, x[part], z[part], 1 / len(x))
    return result


def _add_portion(result: Averages, problem: Problem, x: np.ndarray, z: np.ndarray, each: float) -> None:
    weight = np.full(len(x), each, np.float32)
    p = _attention(problem, x)
    blocks = {pair: problem.between(*pair) for pair in problem.pairs()}
    blocks = {pair: (F.astype(np.float32), {k: M.astype(np.float32) for k, M in along.items()}) for pair, (F, along) in blocks.items()}  # fmt: skip
    for k, rho in enumerate(problem.nodes):
        q = p if rho == 1 else _attention(problem, np.float32(rho) * x + np.float32((1 - rho * rho) ** 0.5) * z)
        for (a, b), (F, along) in blocks.items():
            rows, columns = problem.views.within(a), problem.views.within(b)
            _write(result, k, rows, columns, moments(p[a], q[b], weight, F, along))


def _attention(problem: Problem, field: np.ndarray) -> list[np.ndarray]:
    """Of every sequence: (points, views, keys)."""
    views, root = problem.views, problem.strength**0.5
    result = []
    for sequence in range(problem.keys.sequences):
        own = views.within(sequence)
        result.append(softmax(field[:, problem.keys.of(sequence)], views.visible[own], root * views.scale[own]))
    return result


def _write(result: Averages, node: int, rows: object, columns: object, found: Averages) -> None:
    """Adds to both triangles; a pair of a sequence with itself is its own mirror image."""
    for key, block in found.items():
        if np.array_equal(rows, columns):
            result[key][node][np.ix_(rows, columns)] += (block + block.T) / 2
        else:
            result[key][node][np.ix_(rows, columns)] += block
            result[key][node][np.ix_(columns, rows)] += block.T
