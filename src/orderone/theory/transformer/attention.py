"""Attention as a map of kernels: S2 (1.65), Appendix A; erratum S2.4 for the tangent kernel.

With F_1 the kernel of queries, F that of keys and values, and averages over Gaussian scores of
covariance C_Q C_K F_1 F between query-key pairs:

    R_tt'     = sum E[Omega_ts Omega_t's'] F_ss'                           value
    A[M]_tt'  = sum E[dOmega_ts/dsr  dOmega_t's'/ds'r'] F_ss' M_rr'        bend

    branch      C_U C_V R
    propagated  C_U C_V (sum E[Omega Omega] Theta
                         + C_Q C_K (A[F] Theta_1 + F_1 A[Theta]))          S2 (1.161)-(1.163)
    direct      V: C_U R,                    U: C_V R
                K: C_U C_V C_Q F_1 A[F],     Q: C_U C_V C_K F_1 A[F]       S2 (1.151)-(1.154)

for normalized kernels. `propagated` is the derivative of R in the kernels, along Theta; `direct`
is the contribution of the weights of this layer. R is a covariance: negative eigenvalues, which
come from rounding or sampling, are set to zero.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from orderone.theory.transformer.averaging import VALUE, Averages, SampledAverages, averages
from orderone.theory.transformer.correlations import Correlations, Each, correlations, node_count
from orderone.theory.transformer.moments import FORWARD
from orderone.theory.transformer.points import REPETITIONS
from orderone.theory.transformer.positional import AttentionMap, direct_averages
from orderone.theory.transformer.problem import Problem
from orderone.theory.transformer.stream import Stream
from orderone.theory.transformer.views import separate, views

# Numbers of keys and queries up to which averages have eight digits, unless attention is sharp.
FEW_KEYS = 3
FEW_QUERIES = 12
MANY_VIEWS = 4  # views of a sequence above which all its queries are drawn together
SPREADS = 3.0  # standard errors in a bound: the largest of many pairs, from eight randomizations
# Largest variance of differences of scores. Beyond, fewer than 30 of 65536 points are expected
# where two scores agree to order one, and their spread says nothing about the others.
SHARPEST = (65536 / 30) ** 2
ROUNDING = 1e-6  # of `bend` in single precision, in units of its terms
EXACT = 1e-10  # differences of query scales that product rules resolve


class Tangents(NamedTuple):
    """Tangent kernels of one group."""

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray


TangentKernels: TypeAlias = Mapping[str, Tangents]


class Errors(NamedTuple):
    """Errors from sampling, the largest over pairs; 0 without sampling."""

    value: float  # standard error of R
    # bounds: `SPREADS` standard errors, and rounding in single precision
    bend: float  # of F_1 A[F]
    propagated: float  # of all groups together


@dataclass(frozen=True, eq=False)
class Attended:
    """Averages over pairs of queries, all (queries, queries)."""

    value: np.ndarray  # R
    bend: np.ndarray  # A[F]
    propagated: Mapping[str, np.ndarray]  # group -> derivative of R along its tangent kernels
    variance: np.ndarray  # of p F q from head to head
    errors: Errors


def attend(
    queries: Stream,
    keys: Stream,
    visible: np.ndarray,
    strength: float,
    accuracy: float = 1e-3,
    seed: int = 0,
    values: Stream | None = None,
    chosen: AttentionMap | None = None,
) -> Attended:
    """Return the averages of one layer.

    `strength` is C_Q C_K, `visible` is (sequences, queries, keys). `values` are the keys, unless
    they are another stream at the same points. `chosen` is None for the softmax of scores.
    """
    if values is None:
        values = keys
    along = _tangents(queries, keys, values)
    sharp = False
    if chosen is None or chosen.plain:
        problem, nodes = _problem(queries, keys, values, along, visible, strength, accuracy / 10)
        sampled = averages(problem, accuracy, seed)
        of_pairs = {}
        for key, average in sampled.averages.items():
            of_pairs[key] = nodes.at_pairs(average, problem.views.of_query)
        sharp = not problem.by_product_rules and problem.sharpness > SHARPEST
    else:
        of_keys = {name: (tangents.keys, tangents.values) for name, tangents in along.items()}
        repeated = direct_averages(
            queries, keys, values, of_keys, visible, strength, chosen, accuracy, seed
        )
        sampled = _mean_over_repetitions(repeated)
        of_pairs = sampled.averages
    value = _semidefinite(of_pairs[VALUE])
    bend = of_pairs.get(("bend", FORWARD), np.zeros_like(queries.G))
    propagated = _propagated(along, queries, of_pairs, bend, strength)
    variance = np.maximum(of_pairs["square", FORWARD] - of_pairs[VALUE] ** 2, 0)
    errors = _errors(sampled, queries, values, along, strength)
    if along and sharp:
        errors = errors._replace(bend=np.inf, propagated=np.inf)
    return Attended(value, bend, propagated, variance, errors)


def _mean_over_repetitions(repeated: Averages) -> SampledAverages:
    """Return means over randomizations (the first axis), and their largest standard errors."""
    means = {}
    errors = {}
    for key, each in repeated.items():
        means[key] = each.mean(axis=0)
        errors[key] = float(each.std(axis=0, ddof=1).max()) / REPETITIONS**0.5
    return SampledAverages(means, errors)


def _propagated(
    along: TangentKernels,
    queries: Stream,
    of_pairs: Averages,
    bend: np.ndarray,
    strength: float,
) -> dict[str, np.ndarray]:
    """Return the tangent kernel of each group behind the attention."""
    propagated = {}
    for name, tangents in along.items():
        through_scores = bend * tangents.queries + queries.G * of_pairs["bend", name]
        propagated[name] = of_pairs["value", name] + strength * through_scores
    return propagated


def _errors(
    sampled: SampledAverages,
    queries: Stream,
    values: Stream,
    along: TangentKernels,
    strength: float,
) -> Errors:
    """Return bounds of the errors; those of several groups share their draws, and so add up."""
    errors = sampled.errors
    largest = float(np.abs(queries.G).max())
    of_values = float(np.abs(values.G).max())
    bend = _bend_bound(errors.get(("bend", FORWARD), 0.0), of_values, largest)
    propagated = 0.0
    for name, tangents in along.items():
        size = float(np.abs(tangents.queries).max())
        of_keys = float(np.abs(tangents.keys).max())
        of_theta = _bend_bound(errors["bend", name], of_values, of_keys)
        through_scores = bend * size + largest * of_theta
        propagated += SPREADS * errors["value", name] + strength * through_scores
    return Errors(errors[VALUE], bend * largest, float(propagated))


def _bend_bound(error: float, F: float, M: float) -> float:
    """Return a bound from a standard error and the largest entries; `bend` is a difference."""
    if error == 0:
        return 0.0
    return SPREADS * error + ROUNDING * F * M


def _problem(
    queries: Stream,
    keys: Stream,
    values: Stream,
    along: TangentKernels,
    visible: np.ndarray,
    strength: float,
    tolerance: float,
) -> tuple[Problem, Correlations]:
    """Return the averages to compute, exactly for few keys, and otherwise by sampling."""
    if visible.shape[2] <= FEW_KEYS and len(queries.G) <= FEW_QUERIES:
        exact, nodes = _by_views(queries, keys, values, along, visible, strength, EXACT)
        if exact.by_product_rules:
            return exact, nodes
    problem, nodes = _by_views(queries, keys, values, along, visible, strength, tolerance)
    few_views = len(problem.views.sequence) <= MANY_VIEWS * keys.tokens.sequences
    if problem.by_product_rules or few_views:
        return problem, nodes
    every_query = replace(
        problem,
        views=separate(queries.G.diagonal(), queries.tokens, visible),
        nodes=np.ones(1),
        needed=np.ones((1, *queries.G.shape), bool),
        queries=queries.G,
    )
    return every_query, Each()


def _by_views(
    queries: Stream,
    keys: Stream,
    values: Stream,
    along: TangentKernels,
    visible: np.ndarray,
    strength: float,
    tolerance: float,
) -> tuple[Problem, Correlations]:
    """Return the problem with scales of queries that differ by less than `tolerance` as one."""
    variance = queries.G.diagonal()
    size = np.sqrt(np.where(variance > 0, variance, 1.0))
    views_of_queries = views(variance, queries.tokens, visible, tolerance)
    sharpness = strength * float(variance.max()) * float(np.abs(keys.G).max())
    most_nodes = node_count(sharpness, tolerance <= EXACT)
    nodes = correlations(queries.G / size[:, None] / size, most_nodes)
    needed = nodes.needed(views_of_queries.of_query)
    of_keys = {name: (tangents.keys, tangents.values) for name, tangents in along.items()}
    problem = Problem(
        keys.G,
        values.G,
        of_keys,
        keys.tokens,
        views_of_queries,
        strength,
        nodes.nodes,
        needed,
    )
    return problem, nodes


def _tangents(queries: Stream, keys: Stream, values: Stream) -> dict[str, Tangents]:
    """Return the tangent kernels of each group, with 0 for a stream that does not have it."""
    no_query = np.zeros_like(queries.G)
    no_key = np.zeros_like(keys.G)
    along = {}
    for name in dict.fromkeys([*queries.theta, *keys.theta, *values.theta]):
        along[name] = Tangents(
            queries.theta.get(name, no_query),
            keys.theta.get(name, no_key),
            values.theta.get(name, no_key),
        )
    return along


def _semidefinite(matrix: np.ndarray) -> np.ndarray:
    """Return the nearest positive semidefinite matrix; a Cholesky factor shows if it is one."""
    rounding = 1e-12 * max(float(np.trace(matrix)), 1e-300)
    try:
        np.linalg.cholesky(matrix + rounding * np.eye(len(matrix)))
        return matrix
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(matrix)
        nearest = (vectors * np.maximum(values, 0)) @ vectors.T
        return (nearest + nearest.T) / 2
