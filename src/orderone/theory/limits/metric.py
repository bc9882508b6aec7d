"""Geometry of the noise: Sigma(V) on upper triangles, and its inverse.

    Sigma(V)_{ab,cd} = V_ac V_bd + V_ad V_bc                                               S3 (2.7)
    <A, B>_V = sum A_ab [Sigma(V)^{-1}]_{ab,cd} B_cd = 1/2 Tr(A V^{-1} B V^{-1})           S3 (2.11)

a <= b and c <= d in the sum. Erratum S3.7: it runs over pairs of pairs; the middle expression
printed in (2.11) does not.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from types import ModuleType

import numpy as np

from orderone.core.covariances import array, covariance, numpy
from orderone.core.errors import InputError
from orderone.core.inputs import Array, ArrayLike


def diffusion(V: ArrayLike) -> Array:
    """Return Sigma(V) on the upper triangle, row by row: (m (m + 1) / 2, m (m + 1) / 2)."""
    checked, _ = covariance(V, "V")
    a, b = np.triu_indices(checked.shape[0])
    return checked[a][:, a] * checked[b][:, b] + checked[a][:, b] * checked[b][:, a]


def metric(V: ArrayLike, A: ArrayLike, B: ArrayLike) -> Array:
    """Return the affine-invariant inner product of A and B at the invertible covariance V."""
    checked, xp = covariance(V, "V")
    condition = 1.0
    if checked.shape[0] > 1:
        condition = float(np.linalg.cond(numpy(checked)))
    if condition > 1 / xp.finfo(checked.dtype).eps or not bool(checked[0, 0] > 0):
        raise InputError(
            "V: expected an invertible covariance, got a singular one; remove inputs that are zero"
            " or linear combinations of others",
            argument="V",
        )
    left = xp.linalg.solve(checked, _direction(A, "A", checked, xp))
    right = xp.linalg.solve(checked, _direction(B, "B", checked, xp))
    return xp.linalg.trace(left @ right) / 2


def _direction(values: ArrayLike, name: str, V: Array, xp: ModuleType) -> Array:
    """Return `values` as a matrix of the type and shape of V."""
    matrix, _ = array(values, name)
    if tuple(matrix.shape) != tuple(V.shape):
        raise InputError(
            f"{name}: expected a matrix of shape {tuple(V.shape)}, as V, got {tuple(matrix.shape)}",
            argument=name,
        )
    return xp.asarray(matrix, dtype=V.dtype)
