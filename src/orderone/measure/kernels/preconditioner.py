"""A preconditioner of kernels: a low rank, and a multiple of the identity.

    K ~= L L^T,     P = L L^T + s I,     P^{-1} = (I - L (s I + L^T L)^{-1} L^T) / s

L has the columns of a Cholesky factor whose pivots are drawn in blocks, with probabilities that are
proportional to what is left of the diagonal. A block of pivots S adds to L

    R V e^{-1/2},     R = (K - L L^T)[:, S],     V e V^T = R[S]

It takes `rank` rows of the kernel, n rank^2 operations and n rank numbers.

Chen, Epperly, Tropp & Webber 2022, "Randomly pivoted Cholesky".
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.measure.kernels.triangle import UpperTriangle

BLOCK = 128  # pivots
ROWS = 1024  # of L that are converted to double precision at once
NOTHING = 1e-12  # relative size of a diagonal that is zero
SMALL = 1e-10  # relative size of eigenvalues of a block that rounding hides


class Preconditioner:
    """The inverse of L L^T + s I; s is `ridge`, or the mean of the diagonal that L leaves."""

    def __init__(self, kernel: UpperTriangle, rank: int, ridge: float) -> None:
        self._low_rank, rest = pivoted_factor(kernel, rank)
        self._noise = ridge
        if ridge == 0:
            smallest = float(torch.finfo(self._low_rank.dtype).eps)
            self._noise = max(rest / kernel.size, smallest)
        inner = torch.zeros(2 * self._low_rank.shape[1:], dtype=torch.float64)
        inner = inner.to(self._low_rank.device)
        for rows in self._low_rank.split(ROWS):
            inner += rows.double().T @ rows.double()
        inner.diagonal().add_(self._noise)
        self._factor = torch.linalg.cholesky(inner)

    def __call__(self, columns: Tensor) -> Tensor:
        """Return P^{-1} `columns`, in double precision."""
        inner = torch.zeros(self._low_rank.shape[1], columns.shape[1]).to(columns)
        for rows, part in zip(*self._parts(columns), strict=True):
            inner += rows.double().T @ part
        inner = torch.cholesky_solve(inner, self._factor)
        result = columns.clone()
        for rows, part in zip(*self._parts(result), strict=True):
            part -= rows.double() @ inner
        return result.div_(self._noise)

    def _parts(self, columns: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return self._low_rank.split(ROWS), columns.split(ROWS)


def pivoted_factor(kernel: UpperTriangle, rank: int) -> tuple[Tensor, float]:
    """Return L, (examples, rank), and the sum of the diagonal that is left."""
    diagonal = kernel.diagonal()
    like = kernel.part(slice(0, 1), slice(0, 1))
    generator = torch.Generator().manual_seed(0)
    L = torch.zeros(kernel.size, rank, dtype=like.dtype, device=like.device)
    start = float(diagonal.max())
    filled = 0
    while filled < rank and float(diagonal.max()) > NOTHING * start:
        pivots = _draw(diagonal, min(BLOCK, rank - filled), generator)
        rest = torch.stack([kernel.row(int(pivot)) for pivot in pivots], 1).double()
        if not bool(torch.isfinite(rest).all()):
            raise InputError(
                "kernel: expected finite numbers, got NaN or infinity", argument="kernel"
            )
        rest -= (L[:, :filled] @ L[pivots, :filled].T).double()
        values, vectors = torch.linalg.eigh(rest[pivots])
        present = values > SMALL * float(values.max())
        new = rest @ (vectors[:, present] * values[present] ** -0.5)
        L[:, filled : filled + new.shape[1]] = new
        filled += new.shape[1]
        diagonal = (diagonal - new.square().sum(1)).clamp(min=0.0)
        diagonal[pivots] = 0.0
    return L[:, :filled], float(diagonal.sum())


def _draw(weights: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Draw indices without replacement, with these weights; those without weight never."""
    uniform = torch.rand(len(weights), generator=generator, dtype=torch.float64).to(weights)
    keys = weights.log() - (-uniform.log()).log()
    present = int((weights > 0).sum())
    return keys.topk(min(number, present)).indices
