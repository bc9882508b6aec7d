"""Cholesky factors of many small matrices at once: V = A A^T, A lower triangular.

Arrays are (m, m, paths): every operation runs over all paths, so that a step costs m^3 / 3
operations for each path and a few calls, instead of one LAPACK call for each path. Only the lower
triangle of V is read.
"""

from types import ModuleType

import array_api_compat

from orderone.core.inputs import Array


def cholesky(V: Array) -> tuple[Array, Array]:
    """Return A, and which paths are positive semidefinite up to rounding.

    A pivot of the size of rounding gives a column of zeros, so inputs may repeat or be zero.
    """
    xp = array_api_compat.array_namespace(V)
    m = V.shape[0]
    paths = V.shape[2]
    A = xp.zeros_like(V)
    valid = xp.ones(paths, dtype=xp.bool, device=array_api_compat.device(V))
    rounding = 8 * m * xp.finfo(V.dtype).eps
    for j in range(m):
        if j:
            column = V[j:, j] - xp.einsum("ikp,kp->ip", A[j:, :j], A[j, :j])
        else:
            column = V[:, 0]
        pivot = column[0]
        least = rounding * xp.abs(V[j, j])
        valid = valid & (pivot >= -least) & (V[j, j] >= 0)
        A[j:, j] = column * _inverse_root(pivot, least, xp)
    return A, valid


def gram(A: Array) -> Array:
    """Return the lower triangle of A A^T."""
    xp = array_api_compat.array_namespace(A)
    V = xp.zeros_like(A)
    for i in range(A.shape[0]):
        V[i, : i + 1] = xp.einsum("kp,jkp->jp", A[i, : i + 1], A[: i + 1, : i + 1])
    return V


def _inverse_root(pivot: Array, least: Array, xp: ModuleType) -> Array:
    positive = pivot > least
    safe = xp.where(positive, pivot, xp.ones_like(pivot))
    return xp.where(positive, 1 / xp.sqrt(safe), xp.zeros_like(pivot))
