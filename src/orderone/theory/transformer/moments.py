"""Averages over the scores of two queries, of their attention and its derivatives.

With p = softmax(x), q = softmax(y), and dp = diag(p) - p p^T the derivative of p in its scores, the
recursions need

    value   E[p M q]                              S2 (1.65), (1.161)
    bend    E[sum (dp)_ik (dq)_jl F_ij M_kl]      S2 (1.153)-(1.154), (1.163), erratum S2.4
    square  E[(p F q)^2]                          for the difference between heads

F is the kernel between the values of two sequences. In `value`, M is F or a tangent kernel of the
values; in `bend`, it is the kernel of the keys or their tangent kernel. In S2, keys and values have
the same kernels up to factors. Written out,

    bend    E[p (F o M) q - p . (F q o M q) - (p F o p M) . q + (p F q)(p M q)]

where o is the elementwise product.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

FORWARD = "F"  # name of F
# (value, bend or square; of which kernel) -> (..., views, views)
Averages: TypeAlias = dict[tuple[str, str], np.ndarray]


def softmax(scores: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Turn scores (..., views, keys) into attention over the visible keys, in place."""
    if not visible.all():
        np.copyto(scores, -np.inf, where=~visible)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def moments(
    p: np.ndarray,
    q: np.ndarray,
    F: np.ndarray,
    along: Mapping[str, np.ndarray],
    of_keys: Mapping[str, np.ndarray],
    weight: np.ndarray | None = None,
) -> Averages:
    """Average over all views of one sequence with all of another.

    `p`, `q` are (repetitions, points, views, keys), `along` kernels M of the values, `of_keys`
    those of the keys, with FORWARD. Results are means over points, (repetitions, views, views),
    weighted by `weight` (points,) if there is one. For p = q, the caller must make `bend`
    symmetric.
    """
    pF = _times(p, F)
    each = _inner(pF, q)
    averages = {
        ("value", FORWARD): _mean(each, weight),
        ("square", FORWARD): _mean(each**2, weight),
    }
    if along:
        few = p.shape[2] * q.shape[2] <= len(along)
        method = _through_matrices if few else _one_by_one
        averages |= method(p, q, pF, each, {FORWARD: F, **along}, of_keys, weight)
    return averages


def _through_matrices(
    p: np.ndarray,
    q: np.ndarray,
    pF: np.ndarray,
    each: np.ndarray,
    along: Mapping[str, np.ndarray],
    of_keys: Mapping[str, np.ndarray],
    weight: np.ndarray | None,
) -> Averages:
    """Average E[p q^T] and the matrix of `bend` for each pair of views.

    After that, more kernels cost nothing.
    """
    F = along[FORWARD]
    shape = (len(p), p.shape[2], q.shape[2])
    averages: Averages = {}
    for kind in ("value", "bend"):
        for name in along:
            averages[kind, name] = np.zeros(shape)
    for i, j in np.ndindex(shape[1:]):
        qj = q[:, :, j]
        if weight is None:
            weighted = p[:, :, i] / p.shape[1]
        else:
            weighted = p[:, :, i] * weight[:, None]
        pi = weighted.transpose(0, 2, 1)
        both = pi @ qj
        less_qF = each[:, None, :, i, j] - (qj @ F.T).transpose(0, 2, 1)
        bent = F * both + (pi * less_qF) @ qj - pi @ (qj * pF[:, :, i])
        for name, M in along.items():
            averages["value", name][:, i, j] = np.einsum("rkl,kl->r", both, M)
            averages["bend", name][:, i, j] = np.einsum("rkl,kl->r", bent, of_keys[name])
    return averages


def _one_by_one(
    p: np.ndarray,
    q: np.ndarray,
    pF: np.ndarray,
    each: np.ndarray,
    along: Mapping[str, np.ndarray],
    of_keys: Mapping[str, np.ndarray],
    weight: np.ndarray | None,
) -> Averages:
    """Average each kernel separately, for all pairs of views at once."""
    F = along[FORWARD]
    averages: Averages = {}
    for name, of_values in along.items():
        M = of_keys[name]
        pM = pF if M is F else _times(p, M)
        inner = each if M is F else _inner(pM, q)
        if of_values is M:
            averages["value", name] = _mean(inner, weight)
        else:
            averages["value", name] = _mean_inner(_times(p, of_values), q, weight)
        product = pM * pF
        if p is q:  # the two middle terms are transposes of each other
            rest = _mean_inner(_times(p, F * M) - 2 * product, q, weight)
        else:
            rest = _mean_inner(_times(p, F * M) - product, q, weight)
            rest -= _mean_inner(p, _times(q, F.T) * _times(q, M.T), weight)
        averages["bend", name] = _mean(inner * each, weight) + rest
    return averages


def _times(p: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Return p M, as one product of matrices."""
    return (p.reshape(-1, p.shape[-1]) @ M).reshape(*p.shape[:-1], -1)


def _inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Sum over keys: (repetitions, points, views, views)."""
    if a.shape[2] == b.shape[2] == 1:
        return np.einsum("rsvk,rsvk->rsv", a, b)[..., None]
    return a @ b.swapaxes(2, 3)


def _mean_inner(a: np.ndarray, b: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Return the mean of `_inner` over points: (repetitions, views, views)."""
    if weight is not None or a.shape[2] == b.shape[2] == 1:
        return _mean(_inner(a, b), weight)
    rows = a.transpose(0, 2, 1, 3).reshape(len(a), a.shape[2], -1)
    columns = b.transpose(0, 2, 1, 3).reshape(len(b), b.shape[2], -1)
    return (rows @ columns.swapaxes(1, 2)).astype(float) / a.shape[1]


def _mean(each: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """Average over points, in double precision, because there are thousands."""
    if weight is None:
        return each.mean(axis=1, dtype=float)
    return np.einsum("s,rsvu->rvu", weight, each)
