"""Steps of the covariance SDE.

    dV = b(V) dt + Sigma(V)^{1/2} dB                                        S3 (2.7), erratum S3.4
    Sigma_{ab,cd} = V_ac V_bd + V_ad V_bc

With V = A A^T the noise is A dS A^T, S symmetric with Var S_ii = 2 dt and Var S_ij = dt. Two
schemes:

**euler** (Euler-Maruyama, weak order 1) adds b h + A S A^T. The sum need not be positive
semidefinite: if it is not, negative eigenvalues are set to zero, and the step is counted.

**geometric** (weak order 2, positive semidefinite by construction) splits the generator. On
Cholesky factors the noise is multiplication by a random triangular matrix,

    dA = A (dK - diag(j / 2) dt)

in Stratonovich's sense, j = 1 ... m, with Var K_jj = dt / 2 and Var K_kj = dt below the diagonal.
Each column of K alone is solved exactly: it adds to column j of A a random mixture of the
later columns, or stretches it by exp(K_jj - j h / 2). One step takes columns 1 ... m-1 and then the
diagonal, the next the diagonal and then columns m-1 ... 1, with the drift halved around each: two
steps are a palindrome of exact semigroups (Strang), so their error is O(h^3). For one input the
step is exact: V exp(sqrt(2) B - h).

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from collections.abc import Iterable

import array_api_compat

from orderone.core.covariances import bounded
from orderone.core.inputs import Array
from orderone.core.normals import Normals
from orderone.theory.limits.drift import Drift
from orderone.theory.limits.triangular import cholesky, gram


class Geometric:
    """Scheme of weak order 2; the half drifts of adjacent steps are one flow of a whole step."""

    projected: int

    def __init__(self, drift: Drift, h: float, normals: Normals):
        self._drift = drift
        self._h = h
        self._normals = normals
        self._forward = True
        self.projected = 0

    def start(self, V: Array) -> Array:
        return self._drift.flow(V, self._h / 2)

    def step(self, V: Array, last: bool) -> Array:
        A = cholesky(V)[0]
        columns = range(V.shape[0] - 1)
        if self._forward:
            _mix(A, columns, self._h, self._normals)
            _stretch(A, self._h, self._normals)
        else:
            _stretch(A, self._h, self._normals)
            _mix(A, reversed(columns), self._h, self._normals)
        self._forward = not self._forward
        return self._drift.flow(gram(A), self._h / 2 if last else self._h)


class Euler:
    """Scheme of weak order 1; `projected` counts the steps that left the covariances."""

    projected: int

    def __init__(self, drift: Drift, h: float, normals: Normals):
        self._drift = drift
        self._h = h
        self._normals = normals
        self.projected = 0
        self._A: Array = None

    def start(self, V: Array) -> Array:
        self._A = cholesky(V)[0]
        return V

    def step(self, V: Array, last: bool) -> Array:
        """Return the new V; its Cholesky factor shows if it is valid, and is used again later."""
        V = V + self._h * self._drift.rate(V) + self._noise()
        self._A, valid = cholesky(V)
        xp = array_api_compat.array_namespace(V)
        if not bool(xp.all(valid)):
            V[:, :, ~valid] = projected(V[:, :, ~valid])
            self.projected += int(xp.sum(xp.astype(~valid, xp.int64)))
            self._A = cholesky(V)[0]
        return V

    def _noise(self) -> Array:
        A = self._A
        xp = array_api_compat.array_namespace(self._A)
        G = self._normals(*A.shape) * (self._h / 2) ** 0.5
        S = G + xp.permute_dims(G, (1, 0, 2))
        return xp.einsum("ijp,ljp->ilp", xp.einsum("ikp,kjp->ijp", A, S), A)


def _mix(A: Array, columns: Iterable[int], h: float, normals: Normals) -> None:
    """Add to each column a random mixture of those after it."""
    xp = array_api_compat.array_namespace(A)
    for j in columns:
        K = normals(A.shape[0] - j - 1, A.shape[2]) * h**0.5
        A[j + 1 :, j] += xp.einsum("ikp,kp->ip", A[j + 1 :, j + 1 :], K)


def _stretch(A: Array, h: float, normals: Normals) -> None:
    xp = array_api_compat.array_namespace(A)
    for j in range(A.shape[0]):
        A[j:, j] *= xp.exp(normals(A.shape[2]) * (h / 2) ** 0.5 - (j + 1) * h / 2)


def projected(V: Array) -> Array:
    """Return the nearest positive semidefinite matrices: negative eigenvalues become zero."""
    xp = array_api_compat.array_namespace(V)
    values, vectors = xp.linalg.eigh(xp.permute_dims(V, (2, 0, 1)))
    scaled = vectors * bounded(values, 0.0)[:, None, :]
    return xp.permute_dims(scaled @ xp.matrix_transpose(vectors), (1, 2, 0))


SCHEMES: dict[str, type[Geometric] | type[Euler]] = {"geometric": Geometric, "euler": Euler}
