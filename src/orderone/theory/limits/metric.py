"""The geometry of the noise: Sigma(V)_{ab,cd} = V_ac V_bd + V_ad V_bc on upper triangles, S3 (2.7),
and its inverse.

    <A, B>_V = sum A_ab [Sigma(V)^{-1}]_{ab,cd} B_cd = 1/2 Tr(A V^{-1} B V^{-1})           S3 (2.11)

a <= b and c <= d in the sum. Erratum S3.7: it runs over pairs of pairs; the middle expression
printed in (2.11) does not.
"""

import numpy as np

from orderone.core.covariances import covariance, numpy
from orderone.core.inputs import Array


def diffusion(V: Array) -> Array:
    """Sigma(V) on the upper triangle, row by row: (m (m + 1) / 2, m (m + 1) / 2)."""
    V, _ = covariance(V, "V")
    a, b = np.triu_indices(V.shape[0])
    return V[a][:, a] * V[b][:, b] + V[a][:, b] * V[b][:, a]


def metric(V: Array, A: Array, B: Array) -> Array:
    """The affine-invariant inner product of two symmetric matrices at the covariance V, which must
    be invertible."""
    V, xp = covariance(V, "V")
    if float(np.linalg.cond(numpy(V)) if V.shape[0] > 1 else 1.0) > 1 / xp.finfo(
        V.dtype
    ).eps or not bool(xp.all(V[0, 0] > 0)):
        raise ValueError(
            "V: expected an invertible covariance, got a singular one; leave out inputs that repeat"
            " others"
        )
    A = xp.asarray(A, dtype=V.dtype)
    B = xp.asarray(B, dtype=V.dtype)
    return xp.linalg.trace(xp.linalg.solve(V, A) @ xp.linalg.solve(V, B)) / 2
