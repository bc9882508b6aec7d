"""Kernel regression and posteriors of Gaussian processes.

mean        = K_* (K + ridge I)^{-1} y
covariance  = K_** - K_* (K + ridge I)^{-1} K_*^T

cholesky    a factor of K + ridge I: n^3 / 3 operations, n^2 numbers
cg          conjugate gradients for all columns of y: n^2 operations per step and column, with
            the matrix in strips (`triangle`). The preconditioner removes the few large
            eigenvalues that kernels have; what is left is close to a multiple of the identity.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from orderone.core.errors import InputError, one_of
from orderone.core.exact import count
from orderone.core.inputs import Count, Name, Number
from orderone.core.reals import real
from orderone.measure.kernels.matrices import Matrix, Tiles, tensor
from orderone.measure.kernels.preconditioner import Preconditioner
from orderone.measure.kernels.triangle import KernelInput, UpperTriangle

METHODS = ("auto", "cholesky", "cg")
LARGEST_FACTOR = 8192  # examples; beyond, conjugate gradients


class KernelRegression:
    """Regression with a kernel between training examples, (train, train).

    `kernel` is a matrix, possibly one that numpy maps from a file, or `Tiles`, which computes parts
    of it when they are needed. Only its upper triangle is read. `ridge` is added to its diagonal:
    the variance of the noise of a Gaussian process. `rank` is the number of columns of the
    preconditioner, and `tolerance` the relative size of the remaining error of each column of
    `targets`.
    """

    def __init__(
        self,
        kernel: KernelInput,
        targets: Matrix,
        ridge: Number = 0.0,
        *,
        method: Name = "auto",
        rank: Count = 256,
        tolerance: Number = 1e-6,
        iterations: Count = 1000,
    ) -> None:
        y = tensor(targets, "targets")
        self.ridge: float = real(ridge, "ridge", least=0)
        self.size: int = kernel.size if isinstance(kernel, Tiles) else kernel.shape[0]
        if y.dim() not in (1, 2) or y.shape[0] != self.size:
            raise InputError(
                f"targets: expected one row for each of {self.size} examples, got the shape"
                f" {tuple(y.shape)}",
                argument="targets",
            )
        if not isinstance(kernel, Tiles) and tuple(kernel.shape) != (self.size, self.size):
            raise InputError(
                f"kernel: expected a square matrix, got the shape {tuple(kernel.shape)}",
                argument="kernel",
            )
        self._shape = y.shape[1:]
        self._kernel = UpperTriangle(kernel)
        self._tolerance = real(tolerance, "tolerance", above=0)
        self._iterations = count(iterations, "iterations")
        self._rank = min(count(rank, "rank", least=0), self.size)
        method = one_of(method, METHODS, "method")
        if method == "auto":
            small = self.size <= LARGEST_FACTOR and not isinstance(kernel, Tiles)
            method = "cholesky" if small else "cg"
        self.method = method
        self.steps: int = 0  # of conjugate gradients
        self._like = self._kernel.part(slice(0, 1), slice(0, 1))
        columns = y.reshape(self.size, -1).to(self._like)
        self._solve = self._by_factor() if method == "cholesky" else self._by_cg()
        self.coefficients: Tensor = self._solve(columns)

    def predict(self, kernel: Matrix) -> Tensor:
        """Return the mean at test inputs, from the kernel between test and train, (test, train)."""
        cross = self._cross(kernel)
        return (cross @ self.coefficients).reshape(cross.shape[0], *self._shape)

    def covariance(self, kernel: Matrix, test_kernel: Matrix) -> Tensor:
        """Return the posterior covariance of a Gaussian process at test inputs, (test, test).

        `test_kernel` is the kernel between test inputs.
        """
        cross = self._cross(kernel)
        prior = tensor(test_kernel, "test_kernel").to(self._like)
        posterior = prior - cross @ self._solve(cross.T.contiguous())
        return (posterior + posterior.T) / 2

    def _cross(self, kernel: Matrix) -> Tensor:
        cross = tensor(kernel, "kernel").to(self._like)
        if cross.dim() != 2 or cross.shape[1] != self.size:
            raise InputError(
                f"kernel: expected one column for each of {self.size} training examples, got the"
                f" shape {tuple(cross.shape)}",
                argument="kernel",
            )
        return cross

    # --- solvers

    def _by_factor(self) -> Callable[[Tensor], Tensor]:
        matrix = self._kernel.part(slice(0, self.size), slice(0, self.size)).clone()
        matrix.diagonal().add_(self.ridge)
        factor, failed = torch.linalg.cholesky_ex(matrix, upper=True)
        if int(failed) or not bool(torch.isfinite(factor).all()):
            raise self._not_definite()
        return lambda columns: torch.cholesky_solve(columns, factor, upper=True)

    def _not_definite(self) -> InputError:
        return InputError(
            "ridge: expected a kernel that is positive definite together with ridge on its"
            f" diagonal, got one that is not, with ridge = {self.ridge:g}; pass a larger ridge,"
            " remove repeated inputs, or use double precision",
            "needs-ridge",
            argument="ridge",
        )

    def _by_cg(self) -> Callable[[Tensor], Tensor]:
        precondition = Preconditioner(self._kernel, self._rank, self.ridge)

        def solve(columns: Tensor) -> Tensor:
            # the largest eigenvalue is up to 1e7 times the ridge: single precision loses the small
            return self._conjugate_gradients(columns.double(), precondition).to(columns)

        return solve

    def _times(self, vectors: Tensor) -> Tensor:
        """Return (K + ridge I) vectors."""
        return self._kernel.times(vectors) + self.ridge * vectors

    def _conjugate_gradients(
        self, columns: Tensor, precondition: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Solve for all columns at once; each has its own step sizes."""
        solution = torch.zeros_like(columns)
        residual = columns.clone()
        goal = self._tolerance * columns.norm(dim=0)
        shifted = precondition(residual)
        direction = shifted.clone()
        product = (residual * shifted).sum(0)
        for step in range(1, self._iterations + 1):
            image = self._times(direction)
            curvature = (direction * image).sum(0)
            active = residual.norm(dim=0) > goal
            if bool((curvature[active] <= 0).any()):
                raise self._not_definite()
            size = torch.where(active & (curvature > 0), product / curvature, 0.0)
            solution += size * direction
            residual -= size * image
            self.steps = step
            if bool((residual.norm(dim=0) <= goal).all()):
                break
            shifted = precondition(residual)
            new = (residual * shifted).sum(0)
            ratio = torch.where(active & (product != 0), new / product, 0.0)
            direction = shifted + ratio * direction
            product = new
        left = (columns - self._times(solution)).norm(dim=0)  # rounding hides in the residual
        if not bool((left <= 10 * goal).all()):
            worst = float((left / columns.norm(dim=0).clamp(min=1e-300)).max())
            raise InputError(
                f"iterations: conjugate gradients stopped after {self.steps} steps at the relative"
                f" error {worst:.2g}, expected {self._tolerance:.2g}; pass a larger ridge, rank or"
                " tolerance, or double precision",
                "not-solved",
                argument="iterations",
            )
        return solution


class TrainedEnsemble:
    """Networks of infinite width, trained to the end on squares: a Gaussian over random starts.

        mean        = Theta_* Theta^{-1} y                          Lee et al. 2019, (16)
        covariance  = K_** + A K A^T - A K_*^T - K_* A^T,           A = Theta_* Theta^{-1}

    `nngp` and `ntk` are (train, train), of the same network.
    """

    def __init__(self, nngp: Matrix, ntk: Matrix, targets: Matrix, ridge: Number = 0.0) -> None:
        self._regression = KernelRegression(ntk, targets, ridge, method="cholesky")
        self._nngp = tensor(nngp, "nngp")

    def predict(self, test_ntk: Matrix) -> Tensor:
        """Return the mean at test inputs; `test_ntk` is (test, train)."""
        return self._regression.predict(test_ntk)

    def covariance(self, test_ntk: Matrix, cross_nngp: Matrix, test_nngp: Matrix) -> Tensor:
        """Return the covariance at test inputs; `cross_nngp` is (test, train)."""
        theta = self._regression._cross(test_ntk)
        A = self._regression._solve(theta.T.contiguous()).T
        cross = tensor(cross_nngp, "cross_nngp").to(A)
        product = A @ cross.T
        prior = tensor(test_nngp, "test_nngp").to(A)
        return prior + A @ self._nngp.to(A) @ A.T - product - product.T
