"""Jacobian of RMSNorm, and gradients that pass through it.

    RMSNorm(u)  = u / r,      r^2 = |u|^2 / d + eps
    J           = (1 - u u^T / (d r^2)) / r                   S0 Lemma D.2 for eps = 0

Without eps, the gradient loses its part along u, and is divided by the size of u.

S0: Stratos, "Scale-Invariant Parameterizations".
"""

import numpy as np

from orderone.core.errors import InputError
from orderone.core.inputs import ArrayLike, Number
from orderone.core.real_arrays import reals
from orderone.core.reals import real


def rms_norm_jacobian(u: ArrayLike, eps: Number = 0.0) -> np.ndarray:
    """Return the Jacobian of RMSNorm at `u`, (d,): (d, d)."""
    vector = _finite(u, "u")
    if vector.ndim != 1:
        raise InputError(
            f"u: expected one vector, got the shape {vector.shape}; call once for each",
            argument="u",
        )
    return rms_norm_backward(vector, np.eye(len(vector)), eps)


def rms_norm_backward(u: ArrayLike, gradient: ArrayLike, eps: Number = 0.0) -> np.ndarray:
    """Return the gradient with respect to `u`, from that with respect to RMSNorm(u).

    The last axis is that of the features; the others broadcast.
    """
    vectors = _finite(u, "u")
    incoming = _finite(gradient, "gradient")
    eps = real(eps, "eps", least=0)
    if vectors.ndim == 0 or incoming.ndim == 0 or vectors.shape[-1] != incoming.shape[-1]:
        raise InputError(
            "gradient: expected vectors with as many entries as those of u, got the shapes"
            f" {incoming.shape} and {vectors.shape}",
            argument="gradient",
        )
    square = np.mean(vectors**2, axis=-1, keepdims=True) + eps
    if not (square > 0).all():
        raise InputError(
            "u: expected vectors other than 0; pass eps above 0 to allow a vector of zeros",
            "zero-variance",
            argument="u",
        )
    along = np.mean(vectors * incoming, axis=-1, keepdims=True) / square
    return (incoming - along * vectors) / np.sqrt(square)


def _finite(values: ArrayLike, name: str) -> np.ndarray:
    array = reals(values, name)
    if not np.isfinite(array).all():
        raise InputError(f"{name}: expected finite numbers, got infinity", argument=name)
    return array
