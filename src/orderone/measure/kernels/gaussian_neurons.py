"""Layers after which neurons are Gaussian, as an activation expects them.

Sums over many new weights are Gaussian. Activations, products and dropout are not. Norms and means
keep what they are given, and a sum is Gaussian if all of its terms are.
"""

from collections.abc import Iterable

from orderone.theory import kernels
from orderone.theory.transformer import HeadsAttention

WITH_WEIGHTS = (kernels.Dense, kernels.Conv)
OTHERS = (kernels.Activation, kernels.Product, kernels.Flatten, HeadsAttention)


def gaussian_after(layers: Iterable[kernels.Layer], before: bool) -> bool:
    """Return whether neurons are Gaussian after some layers; `before`: whether they were."""
    for layer in layers:
        before = _after(layer, before)
    return before


def _after(layer: kernels.Layer, before: bool) -> bool:
    if isinstance(layer, WITH_WEIGHTS):
        return True
    if isinstance(layer, OTHERS):
        return False
    if isinstance(layer, kernels.Dropout):
        return before and layer.keep == 1
    if isinstance(layer, kernels.AddPositions):
        return before and layer.trained
    if isinstance(layer, kernels.Sequential):
        return gaussian_after(layer.layers, before)
    if isinstance(layer, kernels.Residual):
        return before and gaussian_after(layer.branch.layers, before)
    if isinstance(layer, kernels.Sum):
        return all(gaussian_after(branch.layers, before) for branch in layer.branches)
    return before
