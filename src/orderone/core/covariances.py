"""Covariance matrices over inputs, as users pass them: any array, checked once.

A torch tensor stays one, on its device; everything else becomes a numpy array. float32 stays; other
numbers become float64.
"""

from types import ModuleType

import array_api_compat
import numpy as np

from orderone.core.arrays import bounded, like
from orderone.core.arrays import on_host as numpy
from orderone.core.errors import InputError
from orderone.core.inputs import Array

__all__ = ["array", "bounded", "correlation", "covariance", "like", "numpy"]

# Bytes of the dtype -> how far rounding may take V from symmetric and PSD, relative to its size.
ROUNDING = {4: 1e-5, 8: 1e-9}


def array(values: Array, name: str) -> tuple[Array, ModuleType]:
    """Return `values` as an array of floats, and its namespace."""
    if array_api_compat.is_torch_array(values):
        return _tensor(values, name)
    try:
        result = np.asarray(values)
        if np.iscomplexobj(result):
            raise ValueError("complex numbers")
        if result.dtype != np.float32:
            result = result.astype(np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise InputError(
            f"{name}: expected an array of real numbers, got {values!r}", argument=name
        ) from error
    return result, array_api_compat.array_namespace(result)


def _tensor(values: Array, name: str) -> tuple[Array, ModuleType]:
    xp = array_api_compat.array_namespace(values)
    layout = str(values.layout)
    if layout != "torch.strided" or values.is_meta or values.is_complex():
        if values.is_meta:
            problem = "on the meta device"
        else:
            problem = f"of {values.dtype}, {layout}"
        raise InputError(
            f"{name}: expected a dense tensor of real numbers, got a tensor {problem}",
            argument=name,
        )
    values = values.detach()
    if values.dtype not in (xp.float32, xp.float64):
        values = xp.astype(values, xp.float64)
    return values, xp


def covariance(values: Array, name: str = "V0", *, batch: bool = False) -> tuple[Array, ModuleType]:
    """Return a covariance matrix (m, m) and its namespace; with `batch`, also (starts, m, m).

    Raise an InputError unless it is symmetric and positive semidefinite up to rounding.
    """
    V, xp = array(values, name)
    if batch:
        dimensions = (2, 3)
        shape = "(m, m) or (starts, m, m)"
    else:
        dimensions = (2,)
        shape = "(m, m)"
    if V.ndim not in dimensions or V.shape[-1] != V.shape[-2] or 0 in V.shape:
        raise InputError(
            f"{name}: expected a covariance matrix of shape {shape}, got shape {tuple(V.shape)}",
            argument=name,
        )
    if not bool(xp.all(xp.isfinite(V))):
        raise InputError(f"{name}: expected finite numbers, got NaN or infinity", argument=name)
    _check_covariance(numpy(V), name)
    return V / 2 + xp.matrix_transpose(V) / 2, xp  # halves first: sums may overflow


def _check_covariance(V: np.ndarray, name: str) -> None:
    """Raise an InputError unless every matrix is symmetric and positive semidefinite.

    Scaling by the largest entry makes the tolerances relative.
    """
    tolerance = ROUNDING[V.dtype.itemsize]
    transposed = np.swapaxes(V, -1, -2)
    size = np.abs(V).max(axis=(-1, -2), keepdims=True)
    if np.any(np.abs(V / 2 - transposed / 2) > tolerance * (size / 2)):
        raise InputError(
            f"{name}: expected a symmetric matrix, got one that differs from its transpose by "
            f"{np.abs(V - transposed).max():.3g}; if that is rounding, pass (V + V.T) / 2",
            "not-a-covariance",
            argument=name,
        )
    scaled = V / np.where(size > 0, size, 1).astype(np.float64)
    scaled = (scaled + np.swapaxes(scaled, -1, -2)) / 2
    rounding = 4 * float(np.finfo(V.dtype).eps)
    correlations = _without_scales(scaled, rounding)
    ones = np.ones_like(size)
    tests = (
        (scaled, size, "the matrix"),
        (correlations, ones, "its correlations V_ab / sqrt(V_aa V_bb)"),
    )
    for matrix, unit, description in tests:
        lowest = np.linalg.eigvalsh(matrix)[..., 0]
        if np.any(lowest < -tolerance * V.shape[-1]):
            raise InputError(
                f"{name}: expected a positive semidefinite matrix, but the smallest eigenvalue of"
                f" {description} is {(lowest * unit[..., 0, 0]).min():.3g}; for inputs X give"
                " X @ X.T / features",
                "not-a-covariance",
                argument=name,
            )


def _without_scales(V: np.ndarray, rounding: float) -> np.ndarray:
    """Return V_ab / sqrt(V_aa V_bb) with ones on the diagonal.

    On this scale an error in a small input is as visible as one in a large input. Entries of V
    that are only rounding errors are clipped to [-1, 1].
    """
    variance = np.maximum(np.diagonal(V, axis1=-2, axis2=-1), 1e-290)
    scale = np.sqrt(variance)
    rho = V / scale[..., :, None] / scale[..., None, :]
    rho = np.where(np.abs(V) <= rounding, np.clip(rho, -1, 1), np.clip(rho, -1e6, 1e6))
    return np.where(np.eye(V.shape[-1], dtype=bool), 1.0, rho)


def correlation(V: Array) -> Array:
    """Return V_ab / sqrt(V_aa V_bb) of (..., m, m), within [-1, 1].

    It is 0 where an input has no variance, and 1 on the diagonal.
    """
    xp = array_api_compat.array_namespace(V)
    variance = xp.linalg.diagonal(V)
    safe = xp.where(variance > 0, variance, xp.ones_like(variance))
    scale = xp.sqrt(safe)
    rho = bounded(V / scale[..., :, None] / scale[..., None, :], -1.0, 1.0)
    identity = xp.eye(V.shape[-1], dtype=V.dtype, device=array_api_compat.device(V))
    return rho * (1 - identity) + identity
