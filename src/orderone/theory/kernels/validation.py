"""Validation of arrays and covariance matrices that users pass."""

import math
from types import ModuleType

from array_api_compat import array_namespace, device

from orderone.core.arrays import together
from orderone.core.errors import InputError
from orderone.core.inputs import Array, ArrayLike


def floating(values: ArrayLike, name: str) -> tuple[ModuleType, Array]:
    """Return the namespace and the array of `values`: real, floating, finite and not empty."""
    xp, array = together(**{name: values})
    if not bool(xp.all(xp.isfinite(array))):
        raise InputError(
            f"{name}: expected finite numbers, got NaN or infinity; remove these inputs",
            argument=name,
        )
    return xp, array


def square(matrix: Array, name: str) -> Array:
    """Return a covariance as (points, points), symmetric to the last bit."""
    xp = array_namespace(matrix)
    shape = tuple(matrix.shape)
    half = len(shape) // 2
    if len(shape) not in (2, 4) or shape[:half] != shape[half:]:
        raise InputError(
            f"{name}: expected shape (inputs, inputs) or (inputs, tokens, inputs, tokens), got"
            f" {shape}; for inputs, use kernels.inputs(X)",
            argument=name,
        )
    points = math.prod(shape[:half])
    matrix = xp.reshape(matrix, (points, points))
    largest = float(xp.max(xp.abs(matrix)))
    difference = float(xp.max(xp.abs(matrix / 2 - matrix.T / 2))) * 2
    if difference > xp.finfo(matrix.dtype).eps ** 0.5 * largest:
        raise InputError(
            f"{name}: expected a symmetric matrix, got entries that differ by {difference:.3g} from"
            f" their mirror images; if that is rounding, pass ({name} + {name}.T) / 2",
            "not-a-covariance",
            argument=name,
        )
    return matrix / 2 + matrix.T / 2


def check_semidefinite(matrix: Array, name: str) -> None:
    """Raise an InputError if an eigenvalue is negative by more than rounding.

    The eigenvalues are those of the correlations, so that the scales of the points do not matter.
    """
    xp = array_namespace(matrix)
    diagonal = xp.linalg.diagonal(matrix)
    if bool(xp.any(diagonal < 0)):
        raise InputError(
            f"{name}: expected variances on the diagonal, got the negative number"
            f" {float(xp.min(diagonal)):.3g}",
            "not-a-covariance",
            argument=name,
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
        raise InputError(
            f"{name}: expected a positive semidefinite matrix, got one whose correlations have the"
            f" negative eigenvalue {smallest:.3g}; correct a wrong entry, or increase the diagonal",
            "not-a-covariance",
            argument=name,
        )


def _has_cholesky_factor(matrix: Array, rounding: float) -> bool:
    """Return whether a Cholesky factor exists.

    If it does, no eigenvalue is below -rounding. This costs a fifth of computing eigenvalues.
    """
    xp = array_namespace(matrix)
    identity = xp.eye(matrix.shape[0], dtype=matrix.dtype, device=device(matrix))
    try:
        factor = xp.linalg.cholesky(matrix + rounding * identity)
    except Exception:  # each library raises another class of error
        return False
    return bool(xp.all(xp.isfinite(factor)))
