"""Averages over the scores of two queries: of their attention, and of its derivatives.

With p = softmax(x), q = softmax(y), and dp = diag(p) - p p^T the derivative of p by its scores, the recursions need

    value   E[p M q]                                                    S2 (1.65), (1.161)
    bend    E[sum (dp)_ik (dq)_jl F_ij M_kl]                            S2 (1.153)-(1.154), (1.163), erratum S2.4
    square  E[(p F q)^2]                                                how much one head differs from another

for M = F, the kernel between the keys of two sequences, and for tangent kernels M. Written out, `bend` is
E[p (F o M) q - p . (F q o M q) - (p F o p M) . q + (p F q)(p M q)], where o multiplies entry by entry.
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

FORWARD = "F"  # the name of F itself
Averages: TypeAlias = dict[tuple[str, str], np.ndarray]  # (value, bend or square; of which kernel) -> (views, views)


def softmax(scores: np.ndarray, visible: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """(points, views, keys) of one field (points, keys): each view scales it, and sees a part of the keys."""
    scaled = scores[:, None, :] * scale.astype(scores.dtype)[:, None]
    if not visible.all():
        scaled = np.where(visible, scaled, -np.inf)
    scaled -= scaled.max(axis=2, keepdims=True)
    np.exp(scaled, out=scaled)
    scaled /= scaled.sum(axis=2, keepdims=True)
    return scaled


def moments(
    p: np.ndarray, q: np.ndarray, weight: np.ndarray, F: np.ndarray, along: Mapping[str, np.ndarray]
) -> tuple[Averages, np.ndarray]:
    """Of all views of one sequence with all of another: `p`, `q` are (points, views, keys), `along` are kernels M.

    Also p F q at each point, (points, views, views).
    """
    each = _inner(p @ F, q)
    averages = {("value", FORWARD): _mean(weight, each), ("square", FORWARD): _mean(weight, each**2)}
    if along:
        few = p.shape[1] * q.shape[1] <= len(along)
        find = _through_matrices if few else _one_by_one
        averages |= find(p, q, weight, F, {FORWARD: F, **along}, each)
    return averages, each


def _through_matrices(
    p: np.ndarray, q: np.ndarray, weight: np.ndarray, F: np.ndarray, along: Mapping[str, np.ndarray], each: np.ndarray
) -> Averages:
    """E[p q^T], and the matrix of `bend`, for each pair of views: then any number of kernels costs nothing."""
    shape = (p.shape[1], q.shape[1])
    found = {(kind, name): np.zeros(shape) for kind in ("value", "bend") for name in along}
    for i, j in np.ndindex(shape):
        pi, qj = p[:, i] * weight[:, None], q[:, j]
        both = pi.T @ qj
        bent = F * both + (pi * (each[:, i, j, None] - qj @ F.T)).T @ qj - pi.T @ (qj * (p[:, i] @ F))
        for name, M in along.items():
            found["value", name][i, j] = np.vdot(both, M)
            found["bend", name][i, j] = np.vdot(bent, M)
    return found


def _one_by_one(
    p: np.ndarray, q: np.ndarray, weight: np.ndarray, F: np.ndarray, along: Mapping[str, np.ndarray], each: np.ndarray
) -> Averages:
    """Each kernel by itself, for all pairs of views at once."""
    found: Averages = {}
    weighted, pF, qF = p * weight[:, None, None], p @ F, q @ F.T
    for name, M in along.items():
        inner, pM = _inner(p @ M, q), weighted @ M
        found["value", name] = _mean(weight, inner)
        first_order = _sum(weighted @ (F * M), q) - _sum(weighted, qF * (q @ M.T)) - _sum(pF * pM, q)
        found["bend", name] = first_order + _mean(weight, each * inner)
    return found


def _inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(points, views, views), sums over keys."""
    if a.shape[1] == b.shape[1] == 1:
        return np.einsum("svk,svk->sv", a, b)[:, :, None]
    return a @ b.transpose(0, 2, 1)


def _mean(weight: np.ndarray, each: np.ndarray) -> np.ndarray:
    return np.einsum(
        "s,svu->vu", weight, each, dtype=float, casting="same_kind"
    )  # thousands of singles need double sums


def _sum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Over points and keys, for all pairs of views."""
    return np.tensordot(a, b, axes=((0, 2), (0, 2))).astype(float)
