"""Largest singular value of one matrix: exact for small ones, a lower bound for large ones.

    exact      the largest eigenvalue of the Gram matrix of the shorter side, in double precision
    lanczos    at most STEPS steps of Lanczos' method for A^T A from a random vector

Lanczos' method never returns too large a number (up to rounding). After k steps, the expected
relative error of the largest eigenvalue of any matrix whose shorter side has n entries is at most
2.575 (ln n / (k - 1))^2 (Kuczynski and Wozniakowski 1992), and half of that for the singular value:
0.022 for n = 4096 and k = STEPS. This bound is for the worst spectrum. Gaussian matrices, updates
of Adam and sums of both are within 1e-4.

The steps stop early at a relative residual r = RESIDUAL. A random vector has the share n^{-1/2} |g|
of the first singular vector, with a Gaussian g, so the largest eigenvalue is at most r n^{1/2}/|g|
larger: 6e-4 / |g| for n = 4096, and half of that for the singular value.
"""

import math

import torch
from torch import Tensor

from orderone.observe.moments import SQUARABLE, SUMMED

EXACT = 512  # the shorter side of matrices that are exact
EXACT_PRODUCTS = 2**31  # of a Gram matrix
STEPS = 64
RESIDUAL = 1e-5  # relative


def is_exact(rows: int, columns: int) -> bool:
    """Return whether the norm of a matrix of this shape is exact up to rounding."""
    shorter = min(rows, columns)
    return shorter <= EXACT and shorter * rows * columns <= EXACT_PRODUCTS


@torch.no_grad()
def largest_singular(matrix: Tensor) -> float:
    """Return the largest singular value, (rows, columns); NaN if an entry is not finite."""
    rows, columns = matrix.shape
    if matrix.dtype not in SUMMED and not matrix.is_complex():
        matrix = matrix.float()
    largest = float(matrix.abs().max())
    if largest == 0:
        return 0.0
    if not math.isfinite(largest):
        return math.nan
    if rows < columns:
        matrix = matrix.mT
    if is_exact(rows, columns):
        return largest * _by_gram_matrix(matrix, largest)
    return largest * _by_lanczos(matrix, largest)


def _by_gram_matrix(matrix: Tensor, scale: float) -> float:
    wide = matrix.to(torch.promote_types(matrix.dtype, _double(matrix))) / scale
    squares = torch.linalg.eigvalsh(wide.mH @ wide)
    return math.sqrt(max(float(squares[-1]), 0.0))


def _by_lanczos(matrix: Tensor, scale: float) -> float:
    """Return the largest singular value of matrix / scale, which has at least as many rows as
    columns.

    All vectors are made orthogonal to one another in every step: otherwise rounding errors would
    return copies of the same eigenvalue. Random numbers come from a generator of this function, so
    that a training with a probe draws the same numbers as one without.
    """
    if SQUARABLE[0] < scale < SQUARABLE[1]:
        matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    else:  # products of entries may leave the range of single precision
        matrix = matrix.to(torch.promote_types(matrix.dtype, _double(matrix))) / scale
        scale = 1.0
    size = matrix.shape[1]
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(size, generator=generator, dtype=torch.float32).to(matrix)
    basis = (start / start.norm()).unsqueeze(0)  # orthonormal rows
    diagonal: list[float] = []
    beside: list[float] = []
    square = 0.0
    for _ in range(min(STEPS, size)):
        vector = basis[-1]
        image = (matrix.mH @ (matrix @ vector)) / scale**2
        diagonal.append(float(torch.vdot(vector, image).real))
        for _ in range(2):  # once is not enough in floating point
            image = image - basis.mT @ (basis.conj() @ image)
        rest = float(image.norm())
        square, residual = _ritz(diagonal, beside, rest)
        if residual <= RESIDUAL * square or rest == 0:
            break
        beside.append(rest)
        basis = torch.cat([basis, (image / rest).unsqueeze(0)])
    return math.sqrt(max(square, 0.0))


def _ritz(diagonal: list[float], beside: list[float], rest: float) -> tuple[float, float]:
    """Return the largest eigenvalue of a symmetric tridiagonal matrix, and its residual."""
    small = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    for i, value in enumerate(beside):
        small[i, i + 1] = value
        small[i + 1, i] = value
    values, vectors = torch.linalg.eigh(small)
    return float(values[-1]), rest * abs(float(vectors[-1, -1]))


def _double(matrix: Tensor) -> torch.dtype:
    if matrix.device.type == "mps":  # it has no double precision
        return torch.float32
    return torch.float64
