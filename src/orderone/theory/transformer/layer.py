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
from orderone.core.inputs import Count, Flag, Number
from orderone.core.reals import real
from orderone.theory.kernels.kernel import Kernel
from orderone.theory.kernels.layer import Layer, LayerInput, read_layers
from orderone.theory.kernels.matrices import from_matrices
from orderone.theory.kernels.pooling import check_tokens
from orderone.theory.kernels.residual import is_independent
from orderone.theory.kernels.sequential import Sequential
from orderone.theory.transformer.attention import SPREADS, attend
from orderone.theory.transformer.inputs import MaskInput
from orderone.theory.transformer.positional import AttentionMap, Rotary
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


@dataclass(frozen=True, init=False)
class HeadsAttention(Layer):
    """Attention whose queries, keys and values are three branches of the input; no output weights.

        K'     = R,     Theta' = dR along the tangent kernels of the three branches

    Branches end with new weights, which norms may follow: Dense(C_Q) without biases gives the
    scores of S2. `strength` is the variance of scores for queries and keys of unit length, 1 for
    scores that are divided by sqrt(channels). `mask` is (tokens, tokens), true for keys to attend
    to. A Dense layer must follow before an activation: within a head, neurons share their weights.
    """

    queries: Sequential
    keys: Sequential
    values: Sequential
    strength: float
    causal: bool
    mask: tuple[tuple[bool, ...], ...] | None
    rope: float | None
    channels: int | None
    accuracy: float
    seed: int
    independent: ClassVar[bool | None] = True

    def __init__(
        self,
        queries: LayerInput,
        keys: LayerInput,
        values: LayerInput,
        strength: Number = 1.0,
        causal: Flag = False,
        mask: MaskInput = None,
        rope: Number | None = None,
        channels: Count | None = None,
        accuracy: Number = 5e-4,
        seed: Count = 0,
    ):
        for name, branch in {"queries": queries, "keys": keys, "values": values}.items():
            read = Sequential(*read_layers([branch], name))
            if not is_independent(read):
                raise InputError(
                    f"{name}: expected a branch that ends with a Dense layer, which a norm may"
                    f" follow; got {read}",
                    "needs-dense-layer",
                    argument=name,
                )
            object.__setattr__(self, name, read)
        rows = None
        if mask is not None:
            rows = tuple(tuple(bool(x) for x in row) for row in np.asarray(mask))
        object.__setattr__(self, "strength", real(strength, "strength", least=0))
        object.__setattr__(self, "causal", instance(causal, bool, "causal", "pass True or False"))
        object.__setattr__(self, "mask", rows)
        object.__setattr__(self, "rope", None if rope is None else real(rope, "rope", above=1))
        if channels is None:
            size = None
        else:
            size = count(channels, "channels", least=2)
        object.__setattr__(self, "channels", size)
        object.__setattr__(self, "accuracy", real(accuracy, "accuracy", above=0, most=1))
        object.__setattr__(self, "seed", count(seed, "seed", least=0))

    def apply(self, kernel: Kernel) -> Kernel:
        """Return the kernel after this layer."""
        check_tokens(kernel, self)
        streams = []
        for branch in (self.queries, self.keys, self.values):
            after = branch(kernel)
            streams.append(_stream(after, after.tokens or 1))
        queries, keys, values = streams
        tokens = queries.tokens
        mask = None
        if self.mask is not None:
            pairs = np.array(self.mask, dtype=bool)
            mask = np.broadcast_to(pairs, (tokens.sequences, *pairs.shape))
        visible = read_mask(mask, tokens, keys.tokens, self.causal)
        chosen = None
        if self.rope is not None:
            chosen = AttentionMap(Rotary(self.rope, self.channels))
        attended = attend(
            queries, keys, visible, self.strength, self.accuracy, self.seed, values, chosen
        )
        theta = attended.propagated[ALL]
        check_sharpness(
            attended.errors.propagated / (float(np.abs(theta).max()) or 1.0), self.strength
        )
        xp = array_namespace(kernel.gap)
        return from_matrices(
            like(attended.value, kernel.gap, xp),
            like(theta, kernel.gap, xp),
            like(np.zeros(len(theta)), kernel.points.mean, xp),
            gaussian=False,
            tokens=tokens.length,
            space=(tokens.length,),
        )


def _stream(kernel: Kernel, tokens: int) -> Stream:
    points = kernel.gap.shape[0]
    G = as_numpy(kernel.nngp).reshape(points, points)
    theta = as_numpy(kernel.ntk).reshape(points, points)
    return Stream(G, {ALL: theta}, Tokens(points // tokens, tokens))
