"""Product of branches, neuron by neuron, such as the two halves of a gated layer.

    h' = f(h) g(h)      K' = K_f K_g      Theta' = Theta_f K_g + K_f Theta_g

The branches must be independent given h: all but one end with new weights, before activations. S2
footnote 6 for gated MLPs.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from dataclasses import dataclass
from typing import ClassVar

from array_api_compat import array_namespace

from orderone.core.errors import InputError
from orderone.theory.kernels.activation import Activation
from orderone.theory.kernels.kernel import Kernel
from orderone.theory.kernels.layer import Layer, LayerInput, read_layers
from orderone.theory.kernels.matrices import from_matrices
from orderone.theory.kernels.residual import is_independent
from orderone.theory.kernels.sequential import Sequential


@dataclass(frozen=True, init=False)
class Product(Layer):
    """Product of two branches that read the same neurons."""

    branches: tuple[Sequential, ...]
    independent: ClassVar[bool | None] = False

    def __init__(self, *branches: LayerInput) -> None:
        read = tuple(Sequential(branch) for branch in read_layers(branches, "Product"))
        object.__setattr__(self, "branches", read)
        dependent = [branch for branch in read if not _new_weights(branch)]
        if len(read) != 2 or len(dependent) > 1:
            raise InputError(
                "Product: expected two branches, at least one of which has a Dense layer with new"
                f" weights before its last activation; got {len(read)}, of which {len(dependent)}"
                " have none",
                "needs-dense-layer",
                argument="branches",
            )

    def apply(self, kernel: Kernel) -> Kernel:
        """Return the kernel after this layer."""
        first, second = (branch(kernel) for branch in self.branches)
        xp = array_namespace(kernel.gap)
        points = first.gap.shape[0]
        matrices = []
        for each in (first.nngp, first.ntk, second.nngp, second.ntk):
            matrices.append(xp.reshape(each, (points, points)))
        K1, theta1, K2, theta2 = matrices
        return from_matrices(
            K1 * K2,
            theta1 * K2 + K1 * theta2,
            first.points.mean * second.points.mean,
            gaussian=False,
            tokens=first.tokens,
            space=first.space,
        )


def _new_weights(branch: Sequential) -> bool:
    """Return whether neurons are independent of the input, up to activations at the end."""
    layers = list(branch.layers)
    while layers and isinstance(layers[-1], Activation):
        layers.pop()
    return is_independent(Sequential(*layers))
