"""The blocks between stem and head: a layer norm, a branch with weights of its own, and the skip
connection.

    attention   G' = G + C_U C_V R[F],   and tangent kernels as in `attention`
                                         S2 (1.65)
    MLP         G' = G + C_X E[phi(u) phi(v)],   u, v Gaussian with covariance C_W F
                                                 S2 (1.77)
                Theta' = Theta + C_X C_W E[phi' phi'] Theta~                              S2 (1.173)
                own: X: E[phi phi],   W: C_X E[phi' phi'] F
                                      S2 (1.168)-(1.169)

F and Theta~ are G and Theta behind the norm. The multiplier M of the MLP's width is in its learning
rates and initial variances (erratum S2.3), and nowhere here.
"""

from dataclasses import dataclass

import numpy as np

from orderone.theory.activations import Activation
from orderone.theory.transformer.attention import Errors, attend
from orderone.theory.transformer.stream import Stream
from orderone.theory.transformer.weights import Weights


@dataclass(frozen=True, eq=False)
class Passed:
    """A stream behind a block, and what is known about how well it is known."""

    stream: Stream
    error: float = 0.0  # standard error of the attention averages, in units of the largest F
    theta_error: float = (
        0.0  # what this can amount to in the tangent kernel, in units of its largest entry
    )
    head_variance: np.ndarray | None = (
        None  # of the branch of a single head; with H heads it is 1/H of that
    )


def attention_block(
    stream: Stream,
    normalized: Stream,
    keys: Stream,
    visible: np.ndarray,
    weights: Weights,
    accuracy: float,
    seed: int,
) -> Passed:
    """`keys` is `normalized` itself, or what another stream offers (encoder-decoder attention, S2
    (2.2)-(2.4))."""
    C = weights.C
    found = attend(normalized, keys, visible, C["Q"] * C["K"], accuracy, seed)
    both = C["U"] * C["V"]
    carried = {group: both * kernel for group, kernel in found.carried.items()}
    if stream.theta:
        through_scores = both * normalized.G * found.bend
        own = weights.own(
            Q=C["K"] * through_scores,
            K=C["Q"] * through_scores,
            V=C["U"] * found.value,
            U=C["V"] * found.value,
        )
    else:
        own = {}
    behind = stream.plus(both * found.value, carried, own)
    error = found.errors.value / (float(np.abs(keys.G).max()) or 1.0)
    return Passed(
        behind, error, _theta_error(behind, found.errors, weights), both**2 * found.variance
    )


def _theta_error(behind: Stream, errors: Errors, weights: Weights) -> float:
    """Of what is carried on, and of what Q, K, V and U add."""
    C = weights.C
    rate = weights.rates
    if not rate:
        return 0.0
    own = (rate["V"] * C["U"] + rate["U"] * C["V"]) * errors.value
    own += C["U"] * C["V"] * (rate["Q"] * C["K"] + rate["K"] * C["Q"]) * errors.bend
    return (C["U"] * C["V"] * errors.carried + own) / (float(np.abs(behind.total()).max()) or 1.0)


def mlp_block(stream: Stream, normalized: Stream, phi: Activation, weights: Weights) -> Passed:
    C = weights.C
    pair, slope = _averages(phi, C["W"] * normalized.G, derivative=bool(stream.theta))
    carried = {
        group: C["X"] * C["W"] * slope * kernel for group, kernel in normalized.theta.items()
    }
    if stream.theta:
        own = weights.own(W=C["X"] * slope * normalized.G, X=pair)
    else:
        own = {}
    return Passed(stream.plus(C["X"] * pair, carried, own))


def _averages(phi: Activation, K: np.ndarray, derivative: bool) -> tuple[np.ndarray, np.ndarray]:
    """E[phi phi] and E[phi' phi'] for all pairs, each pair once."""
    row, column = np.triu_indices(len(K))
    q = K.diagonal().copy()
    size = np.sqrt(q[row] * q[column])
    gap = np.clip(1 - K[row, column] / np.where(size > 0, size, 1.0), 0, 2)
    gap[row == column] = 0
    result = []
    for average in (phi.pair, phi.derivative_pair) if derivative else (phi.pair,):
        matrix = np.empty_like(K)
        matrix[row, column] = matrix[column, row] = average(q[row], q[column], gap)
        result.append(matrix)
    return result[0], result[-1]
