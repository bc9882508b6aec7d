"""Transformers with few heads and wide ones: kernels are random there, at any width. Erratum S2.5.

Given the kernel F behind a norm, a head draws its scores, L Z L^T sqrt(C_Q C_K) with F = L L^T and Z of independent
normals, and the branch is the mean over heads instead of the expectation:

    G' = G + C_U C_V (1 / H) sum_h O_h O_h^T,        O_h = softmax(scores_h) L

Everything behind follows the recursion, so that both the fluctuation, of order 1 / sqrt(H), and the shift of the mean
that comes from it, of order 1 / H, can be read off draws of the whole chain. It is exact as n / H grows.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from orderone.theory.transformer.blocks import mlp_block
from orderone.theory.transformer.points import factor
from orderone.theory.transformer.stream import Stream
from orderone.theory.transformer.weights import Weights

if TYPE_CHECKING:
    from orderone.theory.transformer.model import Transformer


@dataclass(frozen=True, eq=False)
class FewHeads:
    """Statistics of G behind the stem and behind each block: lists of (points, points)."""

    mean: list[np.ndarray]
    std: list[np.ndarray]  # from network to network
    error: list[np.ndarray]  # standard error of `mean`


def draw_heads(
    model: "Transformer", stem: Stream, visible: np.ndarray, heads: int, samples: int, seed: int
) -> FewHeads:
    rng = np.random.default_rng(seed)
    chains = np.stack([_chain(model, stem, visible, heads, rng) for _ in range(samples)])  # (samples, blocks, ...)
    mean, std = chains.mean(axis=0), chains.std(axis=0, ddof=1)
    return FewHeads(list(mean), list(std), list(std / samples**0.5))


def _chain(model: "Transformer", stem: Stream, visible: np.ndarray, heads: int, rng: np.random.Generator) -> np.ndarray:
    """G behind the stem and behind each block of one network."""
    streams, weights, C = [stem], Weights(model.C, {}), model.C
    for letter in model.blocks:
        stream, normalized = streams[-1], streams[-1].normalized(model.eps)
        if letter == "M":
            streams.append(mlp_block(stream, normalized, model.activation, weights).stream)
        else:
            branch = _heads(normalized, visible, C["Q"] * C["K"], heads, rng)
            streams.append(stream.plus(C["U"] * C["V"] * branch, {}, {}))
    return np.stack([stream.G for stream in streams])


def _heads(stream: Stream, visible: np.ndarray, strength: float, heads: int, rng: np.random.Generator) -> np.ndarray:
    """The mean of O O^T over heads."""
    L = factor(stream.G)[0].reshape(stream.tokens.sequences, stream.tokens.length, -1)
    total = np.zeros_like(stream.G)
    for _ in range(heads):
        scores = strength**0.5 * L @ rng.standard_normal((L.shape[2], L.shape[2])) @ L.transpose(0, 2, 1)
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        attended = (weights / weights.sum(axis=2, keepdims=True) @ L).reshape(len(stream.G), -1)
        total += attended @ attended.T
    return total / heads
