"""Depth scales of the layers of a limit: mean field theory of S1 for each pair of layers.

    activation phi, [dropout,] weights     q' = (weight_var / keep) E phi(x)^2 + bias_var   S1 (2)

Such a pair, repeated many times, has the scales xi_1 (gradients) and xi_2 (correlations) of
`theory.MeanField`, and a weight variance with chi_1 = 1. Numbers in front of weights count for
their variance. Convolutions have the scales of their pixels, as if all pixels were equal. A pair
inside a residual branch has scales too, but the skip connection carries signals past it. A norm
before the activation fixes the length of signals; then xi_1 and xi_2 are not those of S1, and the
pair is left out.

S1: Huang et al. 2020, "Mean field theory for deep dropout networks".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orderone.core.arrays import as_numpy
from orderone.core.errors import InputError
from orderone.theory import MeanField, critical_weight_var, kernels


@dataclass(frozen=True)
class DepthScales:
    """Scales of an activation and the weights after it, as if the pair were repeated."""

    activation: str
    weight_var: float
    bias_var: float
    keep: float
    in_branch: bool  # of a residual block
    phase: str
    chi1: float
    xi1: float
    xi2: float
    trainable_depth: float  # 12 times the smaller scale, for plain networks
    suggested_weight_var: float  # with chi1 = 1; inf if there is none


def depth_scales(layers: Sequence[kernels.Layer], in_branch: bool = False) -> list[DepthScales]:
    """Return the scales of every activation that weights follow, in the order of the layers."""
    found: list[DepthScales] = []
    phi: kernels.Activation | None = None
    factor = 1.0
    keep = 1.0
    normed = False  # whether the length of the signals at the next activation is fixed
    for layer in layers:
        for branch in _branches(layer):
            found.extend(depth_scales(branch, in_branch=True))
        if isinstance(layer, kernels.Activation):
            phi = None if normed else layer
            factor = keep = 1.0
        elif isinstance(layer, kernels.Scale):
            factor *= layer.factor**2
        elif isinstance(layer, kernels.Dropout):
            keep *= layer.keep
        elif isinstance(layer, kernels.Dense | kernels.Conv):
            if phi is not None:
                found.append(_scales(phi, factor, keep, layer, in_branch))
            phi = None
            normed = False
        else:
            normed = isinstance(layer, kernels.LayerNorm | kernels.RMSNorm)
            phi = None
    return found


def _branches(layer: kernels.Layer) -> list[tuple[kernels.Layer, ...]]:
    if isinstance(layer, kernels.Residual):
        return [layer.branch.layers]
    if isinstance(layer, kernels.Sum | kernels.Product):
        return [branch.layers for branch in layer.branches]
    return []


def _scales(
    phi: kernels.Activation,
    factor: float,
    keep: float,
    weights: kernels.Dense | kernels.Conv,
    in_branch: bool,
) -> DepthScales:
    weight_var = factor * weights.weight_var
    network = MeanField(phi.phi, weight_var, weights.bias_var, keep)
    return DepthScales(
        activation=getattr(phi.phi, "name", "function"),
        weight_var=weight_var,
        bias_var=weights.bias_var,
        keep=keep,
        in_branch=in_branch,
        phase=network.phase,
        chi1=network.chi1,
        xi1=network.xi1,
        xi2=network.xi2,
        trainable_depth=float(network.trainable_depth()),
        suggested_weight_var=float(critical_weight_var(phi.phi, weights.bias_var, keep)),
    )


@dataclass(frozen=True, eq=False)
class LayerKernel:
    """The kernel after one layer, as means over inputs (and tokens)."""

    layer: str
    variance: float
    correlation: float  # mean of all pairs of different inputs, for tokens at the same position
    ntk: float


def kernels_by_layer(
    layers: Sequence[kernels.Layer], kernel: kernels.Kernel
) -> tuple[list[LayerKernel], kernels.Kernel]:
    """Return mean variance, correlation and tangent after every layer, and the last kernel."""
    path = [_row("inputs", kernel)]
    for layer in layers:
        kernel = layer(kernel)
        path.append(_row(type(layer).__name__, kernel))
    return path, kernel


def _row(name: str, kernel: kernels.Kernel) -> LayerKernel:
    tokens = kernel.tokens or 1
    points = as_numpy(kernel.points.variance)
    inputs = len(points) // tokens
    if inputs < 2:
        raise InputError("inputs: expected two examples at least, got one", argument="inputs")
    gap = as_numpy(kernel.gap).reshape(inputs, tokens, inputs, tokens)
    same_position = np.einsum("itjt->ij", gap) / tokens
    others = ~np.eye(inputs, dtype=bool)
    ntk = float(as_numpy(kernel.points.ntk).mean())
    correlation = float(1 - same_position[others].mean())
    return LayerKernel(name, float(points.mean()), correlation, ntk)
