"""Averages of `moments` for all pairs of views, at some correlations of their queries.

For few keys: trapezoidal products, one for each pair of views, with eight digits. For many keys:
randomized Sobol points, shared by all pairs. The differences between eight randomizations estimate
the error. The number of points grows until the error is below `accuracy`, in units of the largest
entry of F, which is about 1; it grows only for the pairs that need it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from orderone.theory.transformer.controlled import controlled, fits
from orderone.theory.transformer.draws import Draw, by_fields, together
from orderone.theory.transformer.moments import FORWARD, Averages, moments, softmax
from orderone.theory.transformer.points import REPETITIONS, principal, product_rule
from orderone.theory.transformer.problem import MOST, Problem
from orderone.theory.transformer.sequence_pairs import add, sequence_pairs

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
    goal = accuracy * (float(np.abs(problem.values).max()) or 1.0)
    points = problem.first_points
    result = problem.empty()
    errors = problem.empty()
    errors[VALUE][:] = np.inf
    while True:
        wanted = problem.needed & (errors[VALUE] > goal)
        chosen, remaining_keys = problem.only(wanted)
        if directions is not None:
            draws = by_fields(chosen, directions[remaining_keys], points, seed)
            sampled = _sampled(chosen, draws)
        elif fits(chosen):
            sampled = controlled(chosen, points, seed)
        else:
            sampled = _sampled(chosen, together(chosen, points, seed))
        for key, values in sampled.items():
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
            add(result, np.s_[:, node], slice(i, i + 1), slice(j, j + 1), pair, 1.0)
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
    of_keys = {FORWARD: F[between]}
    along = {}
    for name, (theta, of_values) in problem.along.items():
        of_keys[name] = theta[between]
        along[name] = of_values[between]
    return moments(p, q, problem.values[between], along, of_keys, weight)


def _visible_keys(problem: Problem, view: int) -> np.ndarray:
    keys = problem.keys.of(int(problem.views.sequence[view]))
    return np.arange(problem.keys.points)[keys][problem.views.visible[view]]


def _sampled(problem: Problem, draws: Iterable[Draw]) -> Averages:
    """Return the averages of each repetition: (repetitions, nodes, views, views)."""
    result = problem.empty(REPETITIONS)
    pairs = list(sequence_pairs(problem))
    for draw in draws:
        place = np.s_[draw.repetitions, draw.node]
        for pair in pairs:
            if problem.needed[draw.node, pair.rows, pair.columns].any():
                p = draw.p[pair.a]
                sums = moments(p, draw.q[pair.b], pair.F, pair.along, pair.of_keys)
                add(result, place, pair.rows, pair.columns, sums, draw.share)
    return result
