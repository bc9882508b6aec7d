"""Attention at randomized points, for pairs of queries.

For few views, scores x over all keys are drawn once, and rho x + sqrt(1 - rho^2) z are the scores
of a query of correlation rho, for each node rho (`by_fields`). If every query is a view, as in
causal attention, the scores of all of them are drawn together:

    scores = sqrt(C_Q C_K) A Z B^T,     A A^T = F_1,   B B^T = F                             S2 (A3)

with Z of independent normals, so that every pair has its correlation, and one point serves all
pairs (`together`; with control variates in the module `controlled`).

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from orderone.theory.transformer.moments import softmax
from orderone.theory.transformer.points import (
    REPETITIONS,
    factor,
    fields,
    mirrored,
    principal,
    standard,
)
from orderone.theory.transformer.problem import Problem

HELD = 2**20  # numbers in memory, for the attention of all views


class Draw(NamedTuple):
    """Attention of two queries over the keys of every sequence.

    `p` and `q` are lists of (repetitions, points, views, keys).
    """

    repetitions: slice
    share: float  # share in the points of these repetitions
    node: int
    p: list[np.ndarray]
    q: list[np.ndarray]


def by_fields(problem: Problem, directions: np.ndarray, points: int, seed: int) -> Iterator[Draw]:
    """Yield attention at common fields; `directions` are those of the keys, (keys, directions)."""
    x, z = fields(directions, points, seed)
    nodes = np.flatnonzero(problem.needed.any(axis=(1, 2))).tolist()
    for part in _portions(points, problem.views.visible.size):
        p = _attention(problem, x[part])
        share = x[part].shape[1] / points
        for node in nodes:
            rho = np.float32(problem.nodes[node])
            if rho == 1:
                q = p
            else:
                q = _attention(problem, rho * x[part] + np.sqrt(1 - rho * rho) * z[part])
            yield Draw(part[0], share, node, p, q)


def together(problem: Problem, points: int, seed: int) -> Iterator[Draw]:
    """Yield attention of all queries at once."""
    views = problem.views
    for repetition in range(REPETITIONS):
        for scores, share in scores_together(problem, points, seed, repetition):
            p = []
            for sequence, x in enumerate(scores):
                p.append(softmax(x, views.visible[views.within(sequence)])[None])
            yield Draw(slice(repetition, repetition + 1), share, 0, p, p)


def scores_together(
    problem: Problem, points: int, seed: int, repetition: int
) -> Iterator[tuple[list[np.ndarray], float]]:
    """Yield scores of all queries, (points, views, keys) of each sequence, and their share.

    The largest directions come first, because Sobol numbers are best in their first dimensions.
    """
    assert problem.queries is not None
    A = factor(problem.queries)[0].astype(np.float32)
    B = principal(problem.F, problem.keys.length)
    size = np.multiply.outer((A**2).sum(axis=0), (B**2).sum(axis=0)).ravel()
    order = np.argsort(-size, kind="stable")
    at_once = HELD // max(problem.views.visible.size, size.size, 1) // 2
    step = 1 << max(at_once, 1).bit_length() - 1  # a power of two keeps Sobol numbers balanced
    for normals in standard(size.size, points // 2, seed, repetition, step):
        Z = np.empty_like(normals)
        Z[:, order] = normals
        scores = _scores(problem, A, B, Z.reshape(len(Z), A.shape[1], B.shape[1]))
        yield scores, 2 * len(Z) / points


def _scores(problem: Problem, A: np.ndarray, B: np.ndarray, Z: np.ndarray) -> list[np.ndarray]:
    """Return scores at Z and at -Z, sequence by sequence."""
    root = np.float32(problem.strength**0.5)
    result = []
    for sequence in range(problem.keys.sequences):
        rows = problem.views.within(sequence)
        keys = problem.keys.of(sequence)
        result.append(mirrored(A[rows] @ (Z @ (root * B[keys].T)), axis=0))
    return result


def _attention(problem: Problem, field: np.ndarray) -> list[np.ndarray]:
    """Return the attention of every sequence.

    Each view scales the field (repetitions, points, keys) and attends to a part of it.
    """
    views = problem.views
    root = problem.strength**0.5
    result = []
    for sequence in range(problem.keys.sequences):
        rows = views.within(sequence)
        keys = problem.keys.of(sequence)
        scale = (root * views.scale[rows]).astype(field.dtype)
        result.append(softmax(field[..., None, keys] * scale[:, None], views.visible[rows]))
    return result


def _portions(points: int, numbers: int) -> Iterator[tuple[slice, slice]]:
    """Yield repetitions and points that fit into memory: whole repetitions, or parts of one."""
    at_once = max(1, HELD // numbers)
    repetitions = max(1, at_once // points)
    step = min(points, at_once)
    for first in range(0, REPETITIONS, repetitions):
        for start in range(0, points, step):
            yield slice(first, first + repetitions), slice(start, start + step)
