"""A kernel from the matrices K and Theta.

Digits that the matrices lost by rounding near correlation 1 cannot be recovered.
"""

from array_api_compat import array_namespace

from orderone.core.inputs import Array
from orderone.theory.kernels.kernel import Kernel, Points, pinned


def from_matrices(
    K: Array,
    theta: Array,
    mean: Array,
    gaussian: bool,
    tokens: int | None = None,
    space: tuple[int, ...] = (),
) -> Kernel:
    """Return the kernel; `K`, `theta` are (points, points) and symmetric, `mean` is (points,)."""
    xp = array_namespace(K)
    variance = xp.astype(xp.linalg.diagonal(K), xp.float64)
    ntk = xp.astype(xp.linalg.diagonal(theta), xp.float64)
    # K is 0 for any gap if one of the points has no variance.
    known = xp.where(variance > 0, variance, 1.0)
    size = xp.astype(xp.sqrt(known), K.dtype)
    gap = pinned(xp.clip(1 - K / size[:, None] / size[None, :], 0.0, 2.0), 0 * variance)
    tangent = pinned(theta / size[:, None] / size[None, :], ntk / known)
    return Kernel(Points(variance, ntk, mean, gaussian), gap, tangent, tokens, space)
