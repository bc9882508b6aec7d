"""Mean over the tokens of an input: h'(a) = (1 / T) sum_t h(a, t).

    K'_ab = (1 / T^2) sum_ts K_(a,t)(b,s)                   and the same for Theta

Neurons that were Gaussian remain so. Sums run in double precision, because differences between
pooled inputs may be small.
"""

from dataclasses import dataclass

from array_api_compat import array_namespace

from orderone.core.errors import InputError
from orderone.core.inputs import Array
from orderone.theory.kernels.kernel import Kernel
from orderone.theory.kernels.layer import Layer
from orderone.theory.kernels.matrices import from_matrices


@dataclass(frozen=True)
class AveragePool(Layer):
    """Mean over tokens, which makes each input one point."""

    def apply(self, kernel: Kernel) -> Kernel:
        if kernel.tokens is None:
            raise InputError(
                "AveragePool: expected inputs with tokens, got inputs that are single points; pass"
                " kernels.inputs an array of shape (inputs, tokens, features)",
                "needs-tokens",
                argument="kernel",
            )
        xp = array_namespace(kernel.gap)
        mean = xp.mean(xp.reshape(kernel.points.mean, (-1, kernel.tokens)), axis=1)
        nngp = _pooled(kernel.nngp)
        ntk = _pooled(kernel.ntk)
        return from_matrices(nngp, ntk, mean, kernel.points.gaussian).astype(kernel.gap.dtype)


def _pooled(matrix: Array) -> Array:
    """Average (inputs, tokens, inputs, tokens) to (inputs, inputs)."""
    xp = array_namespace(matrix)
    tokens = matrix.shape[1]
    pooled = xp.sum(matrix, axis=(1, 3), dtype=xp.float64) / tokens**2
    return (pooled + pooled.T) / 2
