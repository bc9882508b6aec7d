"""Averages of `moments` for all pairs of views, at some correlations of their queries.

For few keys: trapezoidal products, one for each pair of views, with eight digits. For many keys:
randomized Sobol points, shared by all pairs. The differences between eight randomizations estimate
the error. The number of points grows until the error is below `accuracy`, in units of the largest
entry of F, which is about 1; it grows only for the pairs that need it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from orderone.theory.transformer.draws import Draw, by_fields, together
from orderone.theory.transformer.moments import FORWARD, Averages, moments, softmax
from orderone.theory.transformer.points import REPETITIONS, principal, product_rule
from orderone.theory.transformer.problem import MOST, Problem

VALUE = ("value", FORWARD)


@dataclass(frozen=True, eq=False)
class SampledAverages:
    """Averages for every node and pair of views, sampled or by product rules."""

    averages: Averages
    errors: Mapping[tuple[str, str], float]  # largest standard errors; 0 without sampling


def averages(problem: Problem, accuracy: float, seed: int) -> SampledAverages:
    """Return the averages to `accuracy`, or with the largest number of points."""
    if problem.by_product_rules:
        result = _by_product_rules(problem)
        return SampledAverages(result, dict.fromkeys(result, 0.0))
    directions = None
    if problem.queries is None:
        directions = principal(problem.F, problem.keys.length)
    goal = accuracy * (float(np.abs(problem.F).max()) or 1.0)
    points = problem.first_points
    result = problem.empty()
    errors = problem.empty()
    errors[VALUE][:] = np.inf
    while True:
        wanted = problem.needed & (errors[VALUE] > goal)
        chosen, remaining_keys = problem.only(wanted)
        if directions is None:
            draws = together(chosen, points, seed)
        else:
            draws = by_fields(chosen, directions[remaining_keys], points, seed)
        for key, values in _sampled(chosen, draws).items():
            spread = values.std(axis=0, ddof=1) / REPETITIONS**0.5
            result[key][wanted] = values.mean(axis=0)[chosen.needed]
            errors[key][wanted] = np.maximum(spread, spread.transpose(0, 2, 1))[chosen.needed]
        largest = float(errors[VALUE][problem.needed].max())
        if largest <= goal or points >= MOST:
            of_each = {key: float(error[problem.needed].max()) for key, error in errors.items()}
            return SampledAverages(result, of_each)
        points = min(MOST, points * _growth(largest / goal, problem.queries is not None))


def _growth(ratio: float, shrinks: bool) -> int:
    """Return the factor by which the number of points grows.

    A problem of many views shrinks to fewer keys with each round, so smaller steps are better.
    """
    if shrinks:
        return 4
    return 2 ** max(1, round(np.log2(ratio)))


def _by_product_rules(problem: Problem) -> Averages:
    result = problem.empty(1)
    for node, i, j in np.argwhere(problem.needed).tolist():
        if i <= j:
            pair = _pair(problem, _correlation(problem, node, i, j), i, j)
            _add(result, np.s_[:, node], slice(i, i + 1), slice(j, j + 1), pair, 1.0)
    return {key: values[0] for key, values in result.items()}


def _correlation(problem: Problem, node: int, i: int, j: int) -> float:
    if problem.queries is None:
        return float(problem.nodes[node])
    size = problem.views.scale[i] * problem.views.scale[j]
    if size > 0:
        return float(problem.queries[i, j] / size)
    return 1.0


def _pair(problem: Problem, rho: float, i: int, j: int) -> Averages:
    """Return the averages of two views, over the keys that they attend to."""
    F = problem.F
    a = _visible_keys(problem, i)
    b = _visible_keys(problem, j)
    scale_i = problem.views.scale[i]
    scale_j = problem.views.scale[j]
    between = np.ix_(a, b)
    first = F[np.ix_(a, a)] * scale_i**2
    cross = F[between] * (rho * scale_i * scale_j)
    other = F[np.ix_(b, b)] * scale_j**2
    x, y, weight = product_rule(
        problem.strength * first, problem.strength * cross, problem.strength * other
    )
    p = softmax(x[None, :, None], np.ones((1, x.shape[1]), bool))
    q = softmax(y[None, :, None], np.ones((1, y.shape[1]), bool))
    along = {name: M[between] for name, M in problem.along.items()}
    return moments(p, q, F[between], along, weight)


def _visible_keys(problem: Problem, view: int) -> np.ndarray:
    keys = problem.keys.of(int(problem.views.sequence[view]))
    return np.arange(problem.keys.points)[keys][problem.views.visible[view]]


def _sampled(problem: Problem, draws: Iterable[Draw]) -> Averages:
    """Return the averages of each repetition: (repetitions, nodes, views, views)."""
    result = problem.empty(REPETITIONS)
    blocks = list(_blocks(problem))
    for draw in draws:
        place = np.s_[draw.repetitions, draw.node]
        for block in blocks:
            if problem.needed[draw.node, block.rows, block.columns].any():
                sums = moments(draw.p[block.a], draw.q[block.b], block.F, block.along)
                _add(result, place, block.rows, block.columns, sums, draw.share)
    return result


class _Block(NamedTuple):
    """Two sequences, their views, and the kernels between their keys."""

    a: int
    b: int
    rows: slice
    columns: slice
    F: np.ndarray
    along: Mapping[str, np.ndarray]


def _blocks(problem: Problem) -> Iterator[_Block]:
    keys = problem.keys
    within = problem.views.within
    for a in range(keys.sequences):
        for b in range(a, keys.sequences):
            part = np.s_[keys.of(a), keys.of(b)]
            along = {name: M[part].astype(np.float32) for name, M in problem.along.items()}
            yield _Block(a, b, within(a), within(b), problem.F[part].astype(np.float32), along)


def _add(
    result: Averages,
    place: tuple[slice, int],
    rows: slice,
    columns: slice,
    parts: Averages,
    share: float,
) -> None:
    """Add `parts` to both triangles; a pair of a sequence with itself is symmetric."""
    for key, block in parts.items():
        target = result[key][place]
        mirror = share * block.swapaxes(1, 2)
        if rows == columns:
            target[:, rows, columns] += (share * block + mirror) / 2
        else:
            target[:, rows, columns] += share * block
            target[:, columns, rows] += mirror
