"""Blocks between stem and head: a layer norm, a branch with new weights, and the skip connection.

    attention   G'     = G + C_U C_V R[F]                                 S2 (1.65)
    MLP         G'     = G + C_X E[phi(u) phi(v)]                         S2 (1.77)
                Theta' = Theta + C_X C_W E[phi' phi'] Theta~              S2 (1.173)
                direct: X: E[phi phi],  W: C_X E[phi' phi'] F     S2 (1.168)-(1.169)

u and v are Gaussian with covariance C_W F; the module `attention` has its tangent kernels. F and
Theta~ are G and Theta after the norm; `direct` is the contribution of the block's weights. The
multiplier M of the MLP's width enters only its learning rates and initial variances (erratum S2.3).

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orderone.theory.activations import Activation
from orderone.theory.transformer.attention import SPREADS, Errors, attend
from orderone.theory.transformer.sharpness import check_sharpness
from orderone.theory.transformer.stream import Stream
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


def attention_block(
    stream: Stream,
    normalized: Stream,
    keys: Stream,
    visible: np.ndarray,
    weights: Weights,
    accuracy: float,
    seed: int,
) -> BlockResult:
    """Pass a stream through attention.

    `keys` is `normalized` itself, or another stream (encoder-decoder attention, S2 (2.2)-(2.4)).
    """
    C = weights.C
    attended = attend(normalized, keys, visible, C["Q"] * C["K"], accuracy, seed)
    both = C["U"] * C["V"]
    propagated = {group: both * kernel for group, kernel in attended.propagated.items()}
    direct = {}
    if stream.theta:
        through_scores = both * normalized.G * attended.bend
        direct = weights.direct(
            Q=C["K"] * through_scores,
            K=C["Q"] * through_scores,
            V=C["U"] * attended.value,
            U=C["V"] * attended.value,
        )
    after = stream.plus(both * attended.value, propagated, direct)
    theta_error = _theta_error(after, attended.errors, weights)
    check_sharpness(theta_error, C["Q"] * C["K"])
    return BlockResult(
        after,
        error=attended.errors.value / (float(np.abs(keys.G).max()) or 1.0),
        theta_error=theta_error,
        head_variance=both**2 * attended.variance,
    )


def _theta_error(after: Stream, errors: Errors, weights: Weights) -> float:
    """Return the error of propagated kernels and of the contributions of Q, K, V and U."""
    C = weights.C
    rate = weights.rates
    if not rate:
        return 0.0
    direct = (rate["V"] * C["U"] + rate["U"] * C["V"]) * SPREADS * errors.value
    direct += C["U"] * C["V"] * (rate["Q"] * C["K"] + rate["K"] * C["Q"]) * errors.bend
    largest = float(np.abs(after.total()).max()) or 1.0
    return (C["U"] * C["V"] * errors.propagated + direct) / largest


def mlp_block(stream: Stream, normalized: Stream, phi: Activation, weights: Weights) -> BlockResult:
    """Pass a stream through an MLP."""
    C = weights.C
    K = C["W"] * normalized.G
    pair = _averages(phi.pair, K)
    if not stream.theta:
        return BlockResult(stream.plus(C["X"] * pair, {}, {}))
    slope = _averages(phi.derivative_pair, K)
    propagated = {}
    for group, kernel in normalized.theta.items():
        propagated[group] = C["X"] * C["W"] * slope * kernel
    direct = weights.direct(W=C["X"] * slope * normalized.G, X=pair)
    return BlockResult(stream.plus(C["X"] * pair, propagated, direct))


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
