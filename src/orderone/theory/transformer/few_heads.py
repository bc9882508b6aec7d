"""Transformers with few, wide heads: their kernels are random at any width. Erratum S2.5.

For the kernel F after a norm, a head has random scores, L Z L sqrt(C_Q C_K) with F = L L and Z of
independent normals, and the branch is the mean over heads instead of the expectation:

    G' = G + C_U C_V (1 / H) sum_h O_h O_h^T,        O_h = softmax(scores_h) L

Everything after it follows the recursion, so that samples of the whole chain show both the
fluctuation, of order 1 / sqrt(H), and the resulting shift of the mean, of order 1 / H. This is
exact as n / H grows.

E[G_H] = G + b / H + ... One block is a mean over heads, and has b = 0; b is half the second
derivative of the later blocks, along the fluctuations. Two networks of H heads and the network of
their 2 H heads together have the same fluctuations to first order, so that, without the noise of
order 1 / sqrt(H),

    E[(G_H + G'_H) / 2 - G_2H] = b / H - b / 2H = b / 2H

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
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
    """Statistics of G after the stem and after each block: lists of (points, points)."""

    mean: list[np.ndarray]
    std: list[np.ndarray]  # from network to network
    error: list[np.ndarray]  # standard error of `mean`
    # b / H: difference of the mean from the kernels of infinitely many heads, to order 1 / H
    shift: list[np.ndarray]
    shift_error: list[np.ndarray]  # standard error of `shift`


def draw_heads(
    model: "Transformer", stem: Stream, visible: np.ndarray, heads: int, samples: int, seed: int
) -> FewHeads:
    """Draw networks in pairs, and with each pair the network of all its heads."""
    rng = np.random.default_rng(seed)
    pairs = (samples + 1) // 2
    # (pairs, 3, blocks, ...)
    drawn = np.stack([_pair(model, stem, visible, heads, rng) for _ in range(pairs)])
    single = drawn[:, :2].reshape(2 * pairs, *drawn.shape[2:])
    mean = single.mean(axis=0)
    std = single.std(axis=0, ddof=1)
    shifts = drawn[:, 0] + drawn[:, 1] - 2 * drawn[:, 2]
    return FewHeads(
        mean=list(mean),
        std=list(std),
        error=list(std / (2 * pairs) ** 0.5),
        shift=list(shifts.mean(axis=0)),
        shift_error=list(shifts.std(axis=0, ddof=1) / pairs**0.5),
    )


def _pair(
    model: "Transformer", stem: Stream, visible: np.ndarray, heads: int, rng: np.random.Generator
) -> np.ndarray:
    """Return G of two networks, and of the network that has the heads of both.

    The shape is (3, stem and blocks, points, points).
    """
    layers = model.blocks.count("A")
    points = len(stem.G)
    Z = rng.standard_normal((layers, 2 * heads, points, points))
    first = _chain(model, stem, visible, Z[:, :heads])
    second = _chain(model, stem, visible, Z[:, heads:])
    joined = _chain(model, stem, visible, Z)
    return np.stack([first, second, joined])


def _chain(model: "Transformer", stem: Stream, visible: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """Return G after the stem and after each block of one network, with the normals `Z`."""
    streams = [stem]
    weights = Weights(model.C, {})
    C = model.C
    normals = iter(Z)
    for letter in model.blocks:
        stream = streams[-1]
        normalized = streams[-1].normalized(model.eps)
        if letter == "M":
            streams.append(mlp_block(stream, normalized, model.activation, weights).stream)
        else:
            branch = _heads(normalized, visible, C["Q"] * C["K"], next(normals))
            streams.append(stream.plus(C["U"] * C["V"] * branch, {}, {}))
    return np.stack([stream.G for stream in streams])


def _heads(stream: Stream, visible: np.ndarray, strength: float, Z: np.ndarray) -> np.ndarray:
    """Return the mean of O O^T over heads."""
    left, _ = factor(stream.G)
    # the symmetric root, which changes little if F changes little
    root = left @ (left / np.linalg.norm(left, axis=0)).T
    L = root.reshape(stream.tokens.sequences, stream.tokens.length, -1)
    total = np.zeros_like(stream.G)
    for normals in Z:
        scores = np.where(visible, strength**0.5 * L @ normals @ L.transpose(0, 2, 1), -np.inf)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        attended = (weights / weights.sum(axis=2, keepdims=True) @ L).reshape(len(stream.G), -1)
        total += attended @ attended.T
    return total / len(Z)
