"""Blocks between stem and head: a layer norm, a branch with new weights, and the skip connection.

    attention   G'     = G + C_U C_V R[F]                                 S2 (1.65)
    MLP         G'     = G + C_X E[phi(u) phi(v)]                         S2 (1.77)
                Theta' = Theta + C_X C_W E[phi' phi'] Theta~              S2 (1.173)
                direct: X: E[phi phi],  W: C_X E[phi' phi'] F     S2 (1.168)-(1.169)
    gated MLP   G'     = G + C_X C_W F E[phi(u) phi(v)]                   S2 footnote 6
                Theta' = Theta + C_X C_W (C_W F E[phi' phi'] + E[phi phi]) Theta~
                direct: X: C_W F E[phi phi],  W: C_X F (C_W F E[phi' phi'] + E[phi phi])

u and v are Gaussian with covariance C_W F; the module `attention` has its tangent kernels. F and
Theta~ are G and Theta after the norm; `direct` is the contribution of the block's weights. The
multiplier M of the MLP's width enters only its learning rates and initial variances (erratum S2.3).
A gated MLP multiplies phi(u) by a second product with weights of the same variance; both matrices
are in the group W.

With a norm of queries and keys, scores have the covariance of unit vectors: C_Q C_K is 1. The norm
divides derivatives in the weights of Q and K by the sizes C_Q F and C_K F that it removes.

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from orderone.core.errors import InputError
from orderone.theory.activations import Activation
from orderone.theory.transformer.attention import SPREADS, Errors, attend
from orderone.theory.transformer.positional import AttentionMap
from orderone.theory.transformer.sharpness import check_sharpness
from orderone.theory.transformer.stream import Stream, check_tangents, check_variance
from orderone.theory.transformer.weights import Weights


@dataclass(frozen=True, eq=False)
class BlockResult:
    """Stream after a block, and its errors."""

    stream: Stream
    # standard error of the attention averages, in units of the largest F
    error: float = 0.0
    # bound of the error in the tangent kernel, in units of its largest entry
    theta_error: float = 0.0
    # variance of the branch with a single head; with H heads it is 1/H of this
    head_variance: np.ndarray | None = None


def _direct(
    weights: Weights, through_scores: np.ndarray, value: np.ndarray, qk_norm: bool
) -> dict[str, np.ndarray]:
    """Return the contributions of the weights of attention to the tangent kernel."""
    C = weights.C
    of_queries = C["K"]
    of_keys = C["Q"]
    if qk_norm:  # queries and keys have the length 1, whatever their constants
        of_queries = 1 / C["Q"]
        of_keys = 1 / C["K"]
    return weights.direct(
        Q=of_queries * through_scores,
        K=of_keys * through_scores,
        V=C["U"] * value,
        U=C["V"] * value,
    )


def attention_block(
    stream: Stream,
    normalized: Stream,
    keys: Stream,
    visible: np.ndarray,
    weights: Weights,
    accuracy: float,
    seed: int,
    qk_norm: bool = False,
    chosen: AttentionMap | None = None,
    temperature: float = 1.0,
) -> BlockResult:
    """Pass a stream through attention.

    `keys` is `normalized` itself, or another stream (encoder-decoder attention, S2 (2.2)-(2.4)).
    `temperature` divides scores.
    """
    check_tangents((normalized, keys))
    C = weights.C
    strength = C["Q"] * C["K"] / temperature**2
    if qk_norm:
        check_unit_norms(normalized, keys, C, accuracy)
        strength = 1.0 / temperature**2
    attended = attend(normalized, keys, visible, strength, accuracy, seed, chosen=chosen)
    both = C["U"] * C["V"]
    propagated = {group: both * kernel for group, kernel in attended.propagated.items()}
    direct = {}
    if stream.theta:
        through_scores = both / temperature**2 * normalized.G * attended.bend
        direct = _direct(weights, through_scores, attended.value, qk_norm)
    after = stream.plus(both * attended.value, propagated, direct)
    theta_error = _theta_error(after, attended.errors, weights, qk_norm, temperature)
    check_sharpness(theta_error, strength)
    return BlockResult(
        after,
        error=attended.errors.value / (float(np.abs(keys.G).max()) or 1.0),
        theta_error=theta_error,
        head_variance=both**2 * attended.variance,
    )


def check_unit_norms(
    queries: Stream, keys: Stream, C: Mapping[str, float], accuracy: float
) -> None:
    """Raise an InputError unless inputs have the length 1, which queries and keys then have too."""
    lengths = np.concatenate([queries.G.diagonal(), keys.G.diagonal()])
    if float(np.abs(lengths - 1).max()) > accuracy or C["Q"] == 0 or C["K"] == 0:
        raise InputError(
            "qk_norm: expected inputs of attention with a squared length of 1 and C['Q'], C['K']"
            f" above 0, got lengths from {lengths.min():.4g} to {lengths.max():.4g}; use a small"
            " eps, placement='pre' and norm_gain=1",
            argument="qk_norm",
        )


def _theta_error(
    after: Stream, errors: Errors, weights: Weights, qk_norm: bool, temperature: float
) -> float:
    """Return the error of propagated kernels and of the contributions of Q, K, V and U."""
    C = weights.C
    rate = weights.rates
    if not rate:
        return 0.0
    direct = (rate["V"] * C["U"] + rate["U"] * C["V"]) * SPREADS * errors.value
    of_scores = rate["Q"] * C["K"] + rate["K"] * C["Q"]
    if qk_norm:
        of_scores = rate["Q"] / C["Q"] + rate["K"] / C["K"]
    direct += C["U"] * C["V"] * of_scores / temperature**2 * errors.bend
    largest = float(np.abs(after.total()).max()) or 1.0
    return (C["U"] * C["V"] * errors.propagated + direct) / largest


def mlp_block(stream: Stream, normalized: Stream, phi: Activation, weights: Weights) -> BlockResult:
    """Pass a stream through an MLP."""
    C = weights.C
    K = C["W"] * normalized.G
    pair = _averages(phi.pair, K)
    check_variance(pair)
    if not stream.theta:
        return BlockResult(stream.plus(C["X"] * pair, {}, {}))
    slope = _averages(phi.derivative_pair, K)
    propagated = {}
    for group, kernel in normalized.theta.items():
        propagated[group] = _times(C["X"] * C["W"] * slope, kernel)
    direct = weights.direct(W=_times(C["X"] * slope, normalized.G), X=pair)
    return BlockResult(stream.plus(C["X"] * pair, propagated, direct))


def gated_block(
    stream: Stream, normalized: Stream, phi: Activation, weights: Weights
) -> BlockResult:
    """Pass a stream through a gated MLP, X (phi(W z) * (W' z))."""
    C = weights.C
    K = C["W"] * normalized.G
    pair = _averages(phi.pair, K)
    check_variance(pair)
    branch = K * pair
    if not stream.theta:
        return BlockResult(stream.plus(C["X"] * branch, {}, {}))
    through = K * _averages(phi.derivative_pair, K) + pair
    propagated = {}
    for group, kernel in normalized.theta.items():
        propagated[group] = _times(C["X"] * C["W"] * through, kernel)
    direct = weights.direct(W=_times(C["X"] * through, normalized.G), X=branch)
    return BlockResult(stream.plus(C["X"] * branch, propagated, direct))


def _times(slope: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Return the product; the slope of a jump is infinite, but what is 0 stays 0."""
    with np.errstate(invalid="ignore"):
        return np.where(kernel == 0, 0.0, slope * kernel)


def _averages(average: Callable[..., np.ndarray], K: np.ndarray) -> np.ndarray:
    """Return `average` of two variances and 1 - rho for all pairs, each pair once."""
    row, column = np.triu_indices(len(K))
    q = K.diagonal().copy()
    size = np.sqrt(q[row] * q[column])
    gap = np.clip(1 - K[row, column] / np.where(size > 0, size, 1.0), 0, 2)
    gap[row == column] = 0
    values = average(q[row], q[column], gap)
    matrix = np.empty_like(K)
    matrix[row, column] = values
    matrix[column, row] = values
    return matrix
