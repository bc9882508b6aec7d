"""The head block: a last norm, then one linear layer into the outputs.

    linear   G = C_head F,  Theta' = C_head Theta~,  own: head F, head_bias 1                   S2
             (1.80), (1.178)-(1.182)
    tied     G = C_WE F,    Theta' = C_WE Theta~,    own: WE F                                  S2
                                                     (1.84), (1.186)-(1.190)

A tied head multiplies by N_rescale W_WE. What the tie correlates is left out here: it touches the
one output that is the token itself, where it is of order n in G and of order one in Theta (erratum
S2.11, `Transformer.tied_contact`).

Pooling comes behind the head, which is linear: the mean over tokens (1 / T^2) sum_tt', or the class
token t = 0; S2 (1.81).
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
    """Output kernel and tangent kernels behind `stream`, which is normalized already."""
    group = "head" if kind == "linear" else "WE"
    out = {name: weights.C[group] * kernel for name, kernel in stream.theta.items()}
    if stream.theta:
        own = {group: stream.G} | (
            {"head_bias": np.ones_like(stream.G)} if kind == "linear" else {}
        )
        for name, kernel in weights.own(**own).items():
            out[name] = out.get(name, 0) + kernel
    return _pooled(weights.C[group] * stream.G, stream, pool), {
        k: _pooled(v, stream, pool) for k, v in out.items()
    }


def _pooled(matrix: np.ndarray, stream: Stream, pool: str) -> np.ndarray:
    tokens = stream.tokens
    blocks = matrix.reshape(tokens.sequences, tokens.length, tokens.sequences, tokens.length)
    if pool == "none":
        return matrix
    if pool == "mean":
        return blocks.mean(axis=(1, 3))
    return blocks[:, 0, :, 0]
