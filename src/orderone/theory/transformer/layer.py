"""Attention as a layer of `theory.kernels`, in its parameterization: sqrt(C / n) W, W ~ N(0, 1).

    K'     = C_U C_V R[K]
    Theta' = C_U C_V (dR[Theta] + 2 R + 2 C_Q C_K K A[K])

R, A and dR are those of `attention`. A rate of 1 for W is a rate of C_G for the weights themselves,
so that direct contributions are C_G times those of S2. A block of a Transformer is
Residual(LayerNorm(eps), Attention()).

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from array_api_compat import array_namespace

from orderone.core.arrays import as_numpy, like
from orderone.core.errors import InputError, instance
from orderone.core.exact import count
from orderone.core.inputs import Count, Number
from orderone.core.reals import real
from orderone.theory.kernels.kernel import Kernel
from orderone.theory.kernels.layer import Layer
from orderone.theory.kernels.matrices import from_matrices
from orderone.theory.transformer.attention import SPREADS, attend
from orderone.theory.transformer.inputs import Flag
from orderone.theory.transformer.sharpness import check_sharpness
from orderone.theory.transformer.stream import ALL, Stream
from orderone.theory.transformer.tokens import Tokens
from orderone.theory.transformer.views import read_mask


@dataclass(frozen=True, init=False)
class Attention(Layer):
    """Softmax attention with infinitely many heads, scores divided by sqrt(channels).

    Inputs must have tokens.
    """

    Q: float
    K: float
    V: float
    U: float
    causal: bool
    accuracy: float
    seed: int
    independent: ClassVar[bool | None] = True

    def __init__(
        self,
        Q: Number = 1.0,
        K: Number = 1.0,
        V: Number = 1.0,
        U: Number = 1.0,
        causal: Flag = False,
        accuracy: Number = 5e-4,
        seed: Count = 0,
    ):
        for name, value in {"Q": Q, "K": K, "V": V, "U": U}.items():
            object.__setattr__(self, name, real(value, name, least=0))
        object.__setattr__(self, "causal", instance(causal, bool, "causal", "pass True or False"))
        object.__setattr__(self, "accuracy", real(accuracy, "accuracy", above=0, most=1))
        object.__setattr__(self, "seed", count(seed, "seed", least=0))

    def apply(self, kernel: Kernel) -> Kernel:
        """Return the kernel after this layer."""
        if kernel.tokens is None:
            raise InputError(
                "Attention: expected inputs with tokens, got inputs that are single points; pass"
                " kernels.inputs an array of shape (inputs, tokens, features)",
                "needs-tokens",
                argument="kernel",
            )
        stream = _stream(kernel, kernel.tokens)
        visible = read_mask(None, stream.tokens, stream.tokens, self.causal)
        attended = attend(stream, stream, visible, self.Q * self.K, self.accuracy, self.seed)
        direct = 2 * attended.value + 2 * self.Q * self.K * stream.G * attended.bend
        xp = array_namespace(kernel.gap)
        total = attended.propagated[ALL] + direct
        errors = attended.errors
        error = errors.propagated + 2 * SPREADS * errors.value + 2 * self.Q * self.K * errors.bend
        check_sharpness(error / (float(np.abs(total).max()) or 1.0), self.Q * self.K)
        size = self.U * self.V
        K = like(size * attended.value, kernel.gap, xp)
        theta = like(size * total, kernel.gap, xp)
        mean = like(np.zeros(len(stream.G)), kernel.points.mean, xp)
        return from_matrices(K, theta, mean, gaussian=False, tokens=kernel.tokens)


def _stream(kernel: Kernel, tokens: int) -> Stream:
    points = kernel.gap.shape[0]
    G = as_numpy(kernel.nngp).reshape(points, points)
    theta = as_numpy(kernel.ntk).reshape(points, points)
    return Stream(G, {ALL: theta}, Tokens(points // tokens, tokens))
