"""What users give to start with, checked: arrays of numbers, and matrices that can be
covariances."""

from typing import Any

from array_api_compat import array_namespace, device

from orderone.core.arrays import together
from orderone.core.inputs import Array


def floating(values: Any, name: str) -> tuple[Any, Array]:
    """The namespace and the array of `values`: real, floating, finite and not empty."""
    xp, array = together(**{name: values})
    if not bool(xp.all(xp.isfinite(array))):
        raise ValueError(
            f"{name}: expected finite numbers, got some that are nan or infinite; remove those"
            " inputs"
        )
    return xp, array


def square(matrix: Array, name: str) -> Array:
    """(points, points), symmetric to the last bit."""
    xp = array_namespace(matrix)
    shape = tuple(matrix.shape)
    if len(shape) not in (2, 4) or shape[: len(shape) // 2] != shape[len(shape) // 2 :]:
        raise ValueError(
            f"{name}: expected shape (inputs, inputs) or (inputs, tokens, inputs, tokens), got"
            f" {shape}; for inputs themselves there is kernels.inputs(X)"
        )
    points = shape[0] * (shape[1] if len(shape) == 4 else 1)
    matrix = xp.reshape(matrix, (points, points))
    largest = float(xp.max(xp.abs(matrix)))
    difference = float(xp.max(xp.abs(matrix / 2 - matrix.T / 2))) * 2
    if difference > xp.finfo(matrix.dtype).eps ** 0.5 * largest:
        raise ValueError(
            f"{name}: expected a symmetric matrix, got entries that differ by {difference:.3g} from"
            f" their mirror images; give ({name} + {name}.T) / 2 if that is meant"
        )
    return matrix / 2 + matrix.T / 2


def check_semidefinite(matrix: Array, name: str) -> None:
    """A ValueError if an eigenvalue is negative by more than rounding, whatever the scales of the
    points."""
    xp = array_namespace(matrix)
    diagonal = array_namespace(matrix).linalg.diagonal(matrix)
    if bool(xp.any(diagonal < 0)):
        raise ValueError(
            f"{name}: expected variances on the diagonal, got {float(xp.min(diagonal)):.3g}; it is"
            " negative"
        )
    size = xp.sqrt(xp.where(diagonal > 0, diagonal, 1.0))
    correlations = matrix / size[:, None] / size[None, :]
    if xp.finfo(matrix.dtype).bits < 32:  # no library has eigenvalues of half precision
        correlations = xp.astype(correlations, xp.float32)
    rounding = 8 * matrix.shape[0] * float(xp.finfo(matrix.dtype).eps)
    if _has_cholesky_factor(correlations, rounding):
        return
    smallest = float(xp.min(xp.linalg.eigvalsh(correlations)))
    if smallest < -rounding:
        raise ValueError(
            f"{name}: expected a positive semidefinite matrix, got one whose correlations have the"
            f" eigenvalue {smallest:.3g}; covariances have none below 0: look for a wrong entry, or"
            " add to the diagonal"
        )


def _has_cholesky_factor(matrix: Array, rounding: float) -> bool:
    """Which shows at a fifth of the cost that no eigenvalue is below -rounding."""
    xp = array_namespace(matrix)
    try:
        factor = xp.linalg.cholesky(
            matrix + rounding * xp.eye(matrix.shape[0], dtype=matrix.dtype, device=device(matrix))
        )
    except Exception:  # each library has its own
        return False
    return bool(xp.all(xp.isfinite(factor)))
