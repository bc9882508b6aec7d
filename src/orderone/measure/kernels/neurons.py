"""Properties of the neurons of a tensor that a limit needs beside their kernels.

Sums over many new weights are Gaussian, with mean zero. Activations, products and dropout are not.
Norms and means over tokens keep what they are given, and a sum is Gaussian if all of its terms are.

Fixed numbers, such as a table of sines, are the same in every network. A term with a mean, or a
second table, is correlated with them until weights follow.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from orderone.core.errors import InputError
from orderone.theory import kernels
from orderone.theory.transformer import HeadsAttention

WITH_WEIGHTS = (kernels.Dense, kernels.Conv)
OTHERS = (kernels.Activation, kernels.Product, kernels.Flatten)


@dataclass(frozen=True)
class Neurons:
    """Properties of neurons; those of inputs are the defaults."""

    gaussian: bool = False
    behind_weights: bool = False
    fixed: bool = False  # whether fixed numbers were added since the last weights


INPUTS = Neurons()


def neurons_after(layers: Iterable[kernels.Layer], neurons: Neurons) -> Neurons:
    """Return the properties after some layers; refuse sums whose terms are correlated."""
    for layer in layers:
        neurons = _after(layer, neurons)
    return neurons


def _after(layer: kernels.Layer, neurons: Neurons) -> Neurons:
    if isinstance(layer, WITH_WEIGHTS):
        return Neurons(gaussian=True, behind_weights=True)
    if isinstance(layer, HeadsAttention):
        return Neurons(gaussian=False, behind_weights=True)
    if isinstance(layer, kernels.Product):
        return _product([neurons_after(branch.layers, neurons) for branch in layer.branches])
    if isinstance(layer, OTHERS):
        return replace(neurons, gaussian=False)
    if isinstance(layer, kernels.Dropout):
        return replace(neurons, gaussian=neurons.gaussian and layer.keep == 1)
    if isinstance(layer, kernels.AddPositions):
        return _with_positions(layer, neurons)
    if isinstance(layer, kernels.Sequential):
        return neurons_after(layer.layers, neurons)
    if isinstance(layer, kernels.Residual):
        return _sum([neurons, neurons_after(layer.branch.layers, neurons)])
    if isinstance(layer, kernels.Sum):
        return _sum([neurons_after(branch.layers, neurons) for branch in layer.branches])
    return neurons


def _with_positions(layer: kernels.AddPositions, neurons: Neurons) -> Neurons:
    if not neurons.behind_weights:
        raise _correlated("numbers are added to the inputs, before any layer with weights")
    if layer.trained:
        return neurons
    if neurons.fixed:
        raise _correlated("two tables of fixed numbers are added to a stream")
    return replace(neurons, gaussian=False, fixed=True)


def _sum(terms: list[Neurons]) -> Neurons:
    """Return the properties of a sum of independent terms."""
    fixed = [term.fixed for term in terms]
    with_means = [not term.gaussian for term in terms]
    if any(fixed) and sum(with_means) > 1:
        raise _correlated("a branch with fixed numbers and another one with a mean are added")
    return Neurons(
        gaussian=all(term.gaussian for term in terms),
        behind_weights=all(term.behind_weights for term in terms),
        fixed=any(fixed),
    )


def _product(factors: list[Neurons]) -> Neurons:
    if sum(factor.fixed for factor in factors) > 1:
        raise _correlated("two branches with fixed numbers are multiplied")
    return Neurons(
        behind_weights=all(factor.behind_weights for factor in factors),
        fixed=any(factor.fixed for factor in factors),
    )


def _correlated(reason: str) -> InputError:
    return InputError(
        f"model: {reason}, so that the terms are correlated; put a layer with weights between",
        "no-infinite-width",
        argument="model",
    )
