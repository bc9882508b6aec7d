"""Activations as DKS and TAT transform them, for modules and functions of PyTorch.

See `theory.kernel_shaping`. Kinks and jumps of an activation are located from its values.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.core.inputs import Number
from orderone.nn.activation_sites import without_hooks
from orderone.nn.shaped import ShapedReLU, TransformedActivation, derivatives
from orderone.theory.gaussian.piecewise import Piecewise, resolve
from orderone.theory.kernel_shaping import (
    Depth,
    deep_kernel_shaping,
    shifted_leaky,
    tailored_slope,
    tailored_smooth,
)

FARTHEST = 64.0  # arguments up to which kinks are located
BESIDE = 1e-7  # distance from a kink, relative to 1 + abs(x), at which slopes are compared
SAME_SLOPE = 1e-5
TRIAL = np.linspace(-7.3, 7.1, 289)
HOMOGENEOUS = 1e-12


class KernelForms:
    """Forms of the activations of one model; equal activations are solved once."""

    def __init__(self, method: str, depth: Depth, target: Number | None) -> None:
        self.method = method
        self.depth = depth
        self.target = target
        self.solved: dict[bytes, Callable[[Any], nn.Module]] = {}

    def form(self, activation: Any, name: str) -> nn.Module:
        """Return the transformed activation; `name` is that of the module in the model."""
        phi = activation
        if isinstance(activation, nn.Module):
            phi = without_hooks(activation)
            if getattr(phi, "inplace", False):
                vars(phi)["inplace"] = False  # the transformed input is needed for the gradient
        values = partial(_values, phi)
        key = values(TRIAL).tobytes()
        if key not in self.solved:
            self.solved[key] = self._solve(phi, values, name)
        return self.solved[key](phi)

    def _solve(
        self, phi: Any, values: Callable[[np.ndarray], np.ndarray], name: str
    ) -> Callable[[Any], nn.Module]:
        pieces = resolve(values, FARTHEST)
        if pieces is None or any(pieces.jumps) or pieces.singular:
            raise InputError(
                "model: expected activations without jumps and poles, which are smooth between"
                f" kinks; got others at {name!r}; to leave it unchanged, pass keep=[{name!r}]",
                "no-shaped-form",
                argument="model",
            )
        bent = bent_points(phi, pieces)
        if self.method == "dks":
            return self._dks(phi, values, pieces)
        if any(abs(point) < BESIDE for point in bent):
            slope = tailored_slope(self.depth, 0.9 if self.target is None else self.target)
            size = ShapedReLU(1.0, slope).gain
            return lambda phi: ShapedReLU(size, size * slope)
        if bent:
            raise InputError(
                f'model: expected activations with a continuous slope for "tat", or with a kink at'
                f" 0; got one with a kink at {bent[0]:.4g} at {name!r}; use method='dks', or"
                f" keep=[{name!r}]",
                "no-shaped-form",
                argument="model",
            )
        tau = 0.3 if self.target is None else self.target
        shape = tailored_smooth(partial(derivatives, phi), self.depth, tau, _cuts(pieces))
        return lambda phi: TransformedActivation(phi, *shape)

    def _dks(
        self, phi: Any, values: Callable[[np.ndarray], np.ndarray], pieces: Piecewise
    ) -> Callable[[Any], nn.Module]:
        zeta = 1.5 if self.target is None else self.target
        once = values(TRIAL)
        if np.abs(values(2 * TRIAL) - 2 * once).max() <= HOMOGENEOUS * np.abs(once).max():
            slope, gamma, delta = shifted_leaky(self.depth, zeta)
            return lambda phi: TransformedActivation(ShapedReLU(1.0, slope), 1, 0, gamma, delta)
        shape = deep_kernel_shaping(partial(derivatives, phi), self.depth, zeta, _cuts(pieces))
        return lambda phi: TransformedActivation(phi, *shape)


def bent_points(phi: Any, pieces: Piecewise) -> list[float]:
    """Return the kinks at which the slope jumps, the nearest to 0 first."""
    kinks = np.array(sorted(pieces.kinks, key=abs))
    if not len(kinks):
        return []
    away = BESIDE * (1 + np.abs(kinks))
    _, left = derivatives(phi, kinks - away, 1)
    _, right = derivatives(phi, kinks + away, 1)
    jumps = np.abs(right - left) > SAME_SLOPE * (np.abs(left) + np.abs(right))
    return kinks[jumps].tolist()


def _cuts(pieces: Piecewise) -> list[float]:
    return [*pieces.ends.tolist(), *pieces.kinks]


def _values(phi: Callable[[Tensor], Tensor], x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return phi(torch.tensor(x, dtype=torch.float64)).numpy()
