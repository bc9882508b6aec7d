"""Head block: a last norm, then one linear layer to the outputs.

    linear   G = C_head F,  Theta' = C_head Theta~,  direct: head F, head_bias 1
    tied     G = C_WE F,    Theta' = C_WE Theta~,    direct: WE F

The first is S2 (1.80), (1.178)-(1.182), the second S2 (1.84), (1.186)-(1.190).

`direct` is the contribution of the head's weights. A tied head multiplies by N_rescale W_WE. The
correlations due to tying are not included: they concern only the output that is the token itself,
where they are of order n in G and of order one in Theta (erratum S2.11,
`Transformer.tied_contact`).

Pooling comes after the head, which is linear: the mean over tokens (1 / T^2) sum_tt', or the class
token t = 0; S2 (1.81).

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Mapping

import numpy as np

from orderone.theory.transformer.stream import Stream
from orderone.theory.transformer.weights import Weights

HEADS = ("linear", "tied")
POOLS = ("none", "mean", "class")


def head_block(
    stream: Stream, kind: str, pool: str, weights: Weights
) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
    """Return output kernel and tangent kernels after `stream`, which is already normalized."""
    group = "head" if kind == "linear" else "WE"
    theta = {name: weights.C[group] * kernel for name, kernel in stream.theta.items()}
    if stream.theta:
        direct = {group: stream.G}
        if kind == "linear":
            direct["head_bias"] = np.ones_like(stream.G)
        for name, kernel in weights.direct(**direct).items():
            theta[name] = theta.get(name, 0) + kernel
    output = _pooled(weights.C[group] * stream.G, stream, pool)
    return output, {name: _pooled(kernel, stream, pool) for name, kernel in theta.items()}


def _pooled(matrix: np.ndarray, stream: Stream, pool: str) -> np.ndarray:
    tokens = stream.tokens
    blocks = matrix.reshape(tokens.sequences, tokens.length, tokens.sequences, tokens.length)
    if pool == "none":
        return matrix
    if pool == "mean":
        return blocks.mean(axis=(1, 3))
    return blocks[:, 0, :, 0]
