"""Averages over the attention of many views, with every view alone as control variate.

The scores x_i of view i are Gaussian, E[x_i x_j^T] = s f_ij F with s = C_Q C_K and f the kernel of
the queries. By Stein's lemma, the linear part of p_i = softmax(x_i) is D_i x_i:

    p_i = m_i + D_i x_i + r_i,      m_i = E[p_i],   D_i = E[dp_i / dx_i] = diag(m_i) - E[p_i p_i^T]

and r_i is uncorrelated with every linear function of the scores. So, with F the kernel of the keys,
F_v that of the values, and kernels M of the values or, in `bend`, of the keys,

    B_ij[M, F]    = sum over pairs of keys of (D_i M) (F D_j)
    E[p_i M p_j]  = m_i M m_j + s f_ij B_ij[M, F] + E[r_i M r_j]
    E[p_i M p_i]  = sum over pairs of keys of E[p_i p_i^T] M
    bend_ij[M]    = B_ij[M, F_v] + fluctuations of dp_i / dx_i and dp_j / dx_j

m and D are averages over one view. They need no pairs, so that many points are cheap; and keys are
drawn in the order in which views see them, so that views of few keys use few Sobol dimensions. Only
r and the fluctuations of dp / dx are sampled for pairs. They are several times smaller than p.

Each randomization has separate m and D, so that the differences between randomizations contain all
errors. The square of an error of m or D is a bias, and far below the accuracy.
"""

from dataclasses import dataclass

import numpy as np

from orderone.theory.transformer.draws import HELD, scores_together
from orderone.theory.transformer.moments import FORWARD, Averages, moments, softmax
from orderone.theory.transformer.points import REPETITIONS, factor, mirrored, standard
from orderone.theory.transformer.problem import Problem
from orderone.theory.transformer.sequence_pairs import SequencePair, add, sequence_pairs

MORE = 8  # points of a view alone, for each point of pairs
LARGEST = 2**25  # most numbers of D


@dataclass(frozen=True, eq=False)
class Alone:
    """Averages over each view of one sequence alone, in single precision."""

    mean: np.ndarray  # m, (views, keys)
    square: np.ndarray  # E[p p^T], (views, keys, keys)
    slope: np.ndarray  # D, (views, keys, keys)


def fits(problem: Problem) -> bool:
    """Return whether D of all views fits into memory."""
    return problem.views.visible.size * problem.keys.length <= LARGEST


def controlled(problem: Problem, points: int, seed: int) -> Averages:
    """Return the averages of each repetition: (repetitions, 1, views, views)."""
    result = problem.empty(REPETITIONS)
    pairs = []
    for pair in sequence_pairs(problem):
        if problem.needed[0, pair.rows, pair.columns].any():
            pairs.append(pair)
    for repetition in range(REPETITIONS):
        alone = []
        for sequence in range(problem.keys.sequences):
            alone.append(_alone(problem, sequence, MORE * points, seed, repetition))
        sampled, excess = _sampled(problem, pairs, alone, points, seed, repetition)
        place = np.s_[repetition : repetition + 1, 0]
        for pair in pairs:
            parts = _from_views_alone(problem, pair, alone, excess)
            add(result, place, pair.rows, pair.columns, parts, 1.0)
        for key in result:
            result[key][repetition] += sampled[key][0]
        for pair in pairs:
            if pair.a == pair.b:
                _set_diagonal(pair, alone[pair.a], result, repetition)
        result["square", FORWARD][repetition] += result["value", FORWARD][repetition] ** 2
    return result


def _sampled(
    problem: Problem,
    pairs: list[SequencePair],
    alone: list[Alone],
    points: int,
    seed: int,
    repetition: int,
) -> tuple[Averages, list[np.ndarray]]:
    """Return what needs pairs, and the excess of the sampled D over `alone`, per sequence.

    Under "value" are E[r_i M r_j], under "bend" averages of the whole, and under "square" the
    variance of p F q.
    """
    sums = problem.empty(1)
    whole = {("value", FORWARD): np.zeros((1, *problem.needed.shape))}
    excess = [-each.slope for each in alone]
    for scores, share in scores_together(problem, points, seed, repetition):
        attention = []
        rest = []
        for sequence, x in enumerate(scores):
            linear = _by_view(x, alone[sequence].slope) + alone[sequence].mean
            p = softmax(x, problem.views.visible[problem.views.within(sequence)])
            attention.append(p[None])
            rest.append(p - linear)
            excess[sequence] += np.float32(share) * _slope(p.mean(axis=0), _squares(p))
        for pair in pairs:
            p = attention[pair.a]
            parts = moments(p, attention[pair.b], pair.F, pair.along, pair.of_keys)
            raw = {("value", FORWARD): parts["value", FORWARD]}
            add(whole, np.s_[:, 0], pair.rows, pair.columns, raw, share)
            for name, M in _kernels(pair).items():
                products = np.tensordot(rest[pair.a] @ M, rest[pair.b], axes=([0, 2], [0, 2]))
                parts["value", name] = products[None] / len(rest[pair.a])
            add(sums, np.s_[:, 0], pair.rows, pair.columns, parts, share)
    variance = sums["square", FORWARD] - whole["value", FORWARD] ** 2
    sums["square", FORWARD] = np.maximum(variance, 0)
    return sums, excess


def _from_views_alone(
    problem: Problem, pair: SequencePair, alone: list[Alone], excess: list[np.ndarray]
) -> Averages:
    """Return the parts that depend on m and D.

    The sampled `bend` contains B with the sampled D, of which `excess` removes the first order.
    """
    assert problem.queries is not None
    first = alone[pair.a]
    other = alone[pair.b]
    overlap = problem.strength * problem.queries[pair.rows, pair.columns]
    keys_slope = _flat(pair.of_keys[FORWARD] @ other.slope)
    parts: Averages = {}
    for name, M in _kernels(pair).items():
        linear = overlap * (_flat(first.slope @ M) @ keys_slope.T)
        parts["value", name] = (first.mean @ M @ other.mean.T + linear)[None]
    if problem.along:
        F_slope = _flat(pair.F @ other.slope)
        F_excess = _flat(pair.F @ excess[pair.b])
        for name, M in pair.of_keys.items():
            change = _flat(first.slope @ M) @ F_excess.T + _flat(excess[pair.a] @ M) @ F_slope.T
            parts["bend", name] = -change[None]
    return parts


def _set_diagonal(pair: SequencePair, alone: Alone, result: Averages, repetition: int) -> None:
    """Replace the average of each view with itself by that of the view alone."""
    views = np.arange(pair.rows.start, pair.rows.stop)
    for name, M in _kernels(pair).items():
        result["value", name][repetition, 0, views, views] = _flat(alone.square) @ M.ravel()


def _kernels(pair: SequencePair) -> dict[str, np.ndarray]:
    return {FORWARD: pair.F, **pair.along}


def _alone(problem: Problem, sequence: int, points: int, seed: int, repetition: int) -> Alone:
    """Average over fields of a sequence's keys, and their mirror images."""
    views = problem.views.within(sequence)
    visible = problem.views.visible[views]
    keys = problem.keys.of(sequence)
    field = _triangular(problem.F[keys, keys], visible).astype(np.float32)
    scale = (problem.strength**0.5 * problem.views.scale[views]).astype(np.float32)
    mean = np.zeros(visible.shape)
    square = np.zeros((*visible.shape, visible.shape[1]), np.float32)
    at_once = max(1, HELD // max(visible.size, 1) // 2)
    step = 1 << at_once.bit_length() - 1
    others = REPETITIONS + repetition  # independent of the points of pairs
    for normals in standard(field.shape[1], points // 2, seed, others, step):
        x = mirrored(normals @ field.T, axis=0)
        p = softmax(x[:, None] * scale[:, None], visible)
        share = 2 * len(normals) / points
        mean += share * p.mean(axis=0, dtype=float)
        square += np.float32(share) * _squares(p)
    return Alone(mean.astype(np.float32), square, _slope(mean.astype(np.float32), square))


def _triangular(F: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Return (keys, directions): a factor of F, up to a common shift of all keys.

    Keys that more views see use fewer directions; the first has none.
    """
    root, _ = factor(F)
    order = np.argsort(-visible.sum(axis=0), kind="stable")
    differences = root[order] - root[order[0]]
    upper = np.asarray(np.linalg.qr(differences[1:].T, mode="r"))
    field = np.zeros((len(F), len(upper)))
    field[order[1:]] = upper.T
    return field


def _flat(matrices: np.ndarray) -> np.ndarray:
    return matrices.reshape(len(matrices), -1)


def _by_view(x: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return D x for each view: (points, views, keys)."""
    return (x.transpose(1, 0, 2) @ slopes).transpose(1, 0, 2)


def _squares(p: np.ndarray) -> np.ndarray:
    """Return the mean of p p^T over points: (views, keys, keys)."""
    return (p.transpose(1, 2, 0) @ p.transpose(1, 0, 2)) / np.float32(len(p))


def _slope(mean: np.ndarray, square: np.ndarray) -> np.ndarray:
    """Return diag(m) - E[p p^T] of each view."""
    slope = -square
    keys = np.arange(slope.shape[-1])
    slope[:, keys, keys] += mean
    return slope
