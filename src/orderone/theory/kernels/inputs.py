"""First kernel of a network: that of inputs, or of a known covariance.

    K_ab   = x_a . x_b / d
    Theta  = 0
    gap_ab = 1 - cos(x_a, x_b) = |x_a / |x_a| - x_b / |x_b||^2 / 2

for inputs x_a with d features. The second form of the gap is used for two inputs of nearly the same
direction: in their Gram matrix the difference is lost to rounding.
"""

from math import prod
from typing import NamedTuple

import numpy as np
from array_api_compat import array_namespace, device

from orderone.core.errors import InputError
from orderone.core.inputs import Array, ArrayLike
from orderone.theory.kernels.kernel import Kernel, Points, pinned
from orderone.theory.kernels.matrices import from_matrices
from orderone.theory.kernels.strips import strips
from orderone.theory.kernels.validation import check_semidefinite, floating, square

NEAR = 1e-4  # smaller gaps are computed from differences of inputs
NUMBERS_HELD = 2**17


@np.errstate(over="ignore", under="ignore")
def inputs(X: ArrayLike) -> Kernel:
    """Return the kernel of inputs: (inputs, features) or (inputs, tokens, features).

    Images are (inputs, height, width, channels): their pixels are tokens, and layers such as
    `Conv` know where they are. Other numbers of axes of space work in the same way.

    Kernels have X's library, device and precision. Values that are not floating become double
    precision.
    """
    first = start(X)
    gap = _gaps(first.unit, first.dtype)
    xp = array_namespace(gap)
    return Kernel(first.points, gap, xp.zeros_like(gap), first.tokens, first.space)


class Start(NamedTuple):
    """Inputs as points, before pairs."""

    unit: Array  # (points, features) float64, rows of length one or zero
    points: Points
    dtype: object  # precision of pairs
    tokens: int | None
    space: tuple[int, ...]


@np.errstate(over="ignore", under="ignore")
def start(X: ArrayLike) -> Start:
    """Return the numbers of single points."""
    xp, values = floating(X, "X")
    shape = tuple(values.shape)
    if not 2 <= len(shape) <= 5:
        raise InputError(
            f"X: expected shape (inputs, features) or (inputs, tokens, features), got {shape}; "
            "pass a single input as X[None], and images as (inputs, height, width, channels)",
            argument="X",
        )
    rows = xp.astype(xp.reshape(values, (-1, shape[-1])), xp.float64)
    variance = xp.mean(rows**2, axis=1)
    if not bool(xp.all(xp.isfinite(variance))):
        raise InputError(
            "X: expected inputs whose squares are finite, got larger numbers; divide X by its"
            " largest entry",
            argument="X",
        )
    points = Points(variance, xp.zeros_like(variance), xp.mean(rows, axis=1), gaussian=False)
    length = xp.sqrt(xp.where(variance > 0, variance, 1.0) * shape[-1])
    space = shape[1:-1]
    tokens = prod(space) if space else None
    return Start(rows / length[:, None], points, values.dtype, tokens, space)


@np.errstate(over="ignore", under="ignore")
def covariance(K: ArrayLike, ntk: ArrayLike | None = None) -> Kernel:
    """Return the kernel of Gaussian neurons with covariance `K`.

    `K` is (inputs, inputs) or (inputs, tokens, inputs, tokens).
    """
    xp, values = floating(K, "K")
    matrix = square(values, "K")
    tokens = values.shape[1] if values.ndim == 4 else None
    if ntk is None:
        theta = xp.zeros_like(matrix)
    else:
        theta = square(floating(ntk, "ntk")[1], "ntk")
    if theta.shape != matrix.shape or theta.dtype != matrix.dtype:
        raise InputError(
            f"ntk: expected the shape and type of K, {matrix.shape[0]} points of {matrix.dtype}; "
            f"got {theta.shape[0]} points of {theta.dtype}; compute both for the same inputs",
            argument="ntk",
        )
    check_semidefinite(matrix, "K")
    check_semidefinite(theta, "ntk")
    mean = xp.zeros(matrix.shape[0], dtype=xp.float64, device=device(matrix))
    return from_matrices(matrix, theta, mean, gaussian=True, tokens=tokens)


def _gaps(unit: Array, dtype: object) -> Array:
    """Return gaps, (points, points), of rows of length one or zero."""
    xp = array_namespace(unit)
    points = unit.shape[0]
    gap = xp.empty((points, points), dtype=dtype, device=device(unit))
    for strip in strips(points, NUMBERS_HELD):
        a = unit[strip.rows]
        b = unit[strip.columns]
        rough = xp.clip(1 - a @ b.T, 0.0, 2.0)
        strip.write(gap, xp.astype(sharpened(rough, a, b), dtype))
    return pinned(gap, xp.zeros_like(unit[:, 0]))


def sharpened(gap: Array, a: Array, b: Array) -> Array:
    """Replace the small entries of `gap` by those from differences of the rows of `a` and `b`."""
    xp = array_namespace(gap)
    many = max(1, NUMBERS_HELD // a.shape[1])
    rows, columns = xp.nonzero(gap < NEAR)
    for first in range(0, rows.shape[0], many):
        i = rows[first : first + many]
        j = columns[first : first + many]
        gap[i, j] = xp.sum((a[i] - b[j]) ** 2, axis=1) / 2
    return gap
