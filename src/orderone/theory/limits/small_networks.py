"""Samples of networks that have no limit law, or are too shallow or narrow for it; two inputs.

    z = L g,           V' = (c/n) sum_i phi(z_i) phi(z_i)^T,    V = L L^T
    z' = z + beta h,   h_i ~ N(0, <phi(z), phi(z)> / n),        V = <z, z> / n

The first is S3 (2.2), (3.4)-(3.5); the second, for residual networks, (2.12) with erratum S3.10.

Conditional on the previous layer, neurons are independent, so no weights are drawn.
`measure.sample_network` is for large networks.

**Wide networks** need not be sampled in full either. With M(V) = c E phi(z) phi(z)^T, and V'_k from
k < n neurons,

    V' = M(V) + sqrt(k/n) (V'_k - M(V))

has the same mean and covariance as with n neurons, for any V. It is a mixture of covariances, and
so a covariance.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from collections.abc import Callable
from math import sqrt
from typing import TypeAlias

import numpy as np

from orderone.theory.activations import Activation

Elementwise: TypeAlias = Callable[[np.ndarray], np.ndarray]
SHALLOW = 20  # number of layers below which the limit laws are wrong by some %
NARROW = 30  # the same for neurons
MOST_NEURONS = 20_000  # largest width times depth to sample where a limit law exists
NUMBERS = 10_000_000  # neurons to draw, in all networks together
IN_FULL = 2_000_000  # largest width times depth to sample in full where no limit law exists
FEW = 400  # neurons that represent a wider layer
FEWEST_PATHS = 64
AT_ONCE = 1_000_000  # neurons of one layer in memory, in all networks together


def is_small(n: int, d: int) -> bool:
    return d < SHALLOW or n < NARROW


def can_be_sampled(n: int, d: int) -> bool:
    return n * d <= MOST_NEURONS


def bent(minor: float) -> Elementwise:
    """Return the function with slopes 1 (x > 0) and `minor` (x < 0) that preserves the mean of V.

    It includes the factor for that.
    """

    def phi(z: np.ndarray) -> np.ndarray:
        return np.where(z > 0, z, minor * z) * np.sqrt(2 / (1 + minor**2))

    return phi


def normalized(phi: Activation) -> Elementwise:
    """Return sqrt(c) phi with c = 1 / E phi(g)^2, which preserves V = 1."""
    size = float(phi.second_moment(1.0)) ** 0.5

    def scaled(z: np.ndarray) -> np.ndarray:
        return phi(z) / size

    return scaled


def sampled(
    phi: Elementwise, beta: float | None, n: int, d: int, rho: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return log V_11 and the correlation of many networks, without those where V became 0.

    With `beta`, the networks are residual.
    """
    rng = np.random.default_rng(0)
    fewest = min(512, max(FEWEST_PATHS, 3 * NUMBERS // (n * d)))
    left = int(np.clip(NUMBERS // (n * d), fewest, 4096))
    layers = []
    while left > 0:
        paths = min(left, max(1, AT_ONCE // n))
        layers.append(_last_layers(phi, beta, n, d, _start(rho, paths), rng))
        left -= paths
    return _nonzero(np.concatenate(layers, axis=1))


def _last_layers(
    phi: Elementwise, beta: float | None, n: int, d: int, V: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    if beta is None:
        for _ in range(d):
            V = _products(phi(_neurons(V, n, rng)))
        return V
    z = _neurons(V, n, rng)
    for _ in range(d):
        z = z + beta * _neurons(_products(phi(z)), n, rng)
    return _products(z)


def sampled_wide(phi: Activation, n: int, d: int, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the same for networks of more than `FEW` neurons in a layer."""
    rng = np.random.default_rng(0)
    paths = int(np.clip(5000 // d, FEWEST_PATHS, 512))
    V = _start(rho, paths)
    size = float(phi.second_moment(1.0))
    share = sqrt(FEW / n)
    for _ in range(d):
        mean = products_mean(phi, V)
        V = (mean + share * (_products(phi(_neurons(V, FEW, rng))) - mean)) / size
    return _nonzero(V)


def products_mean(phi: Activation, V: np.ndarray) -> np.ndarray:
    """Return E phi(z) phi(z)^T for the covariances in the rows of V."""
    scale = np.sqrt(V[0]) * np.sqrt(V[2])
    gap = np.clip(1 - V[1] / np.where(scale > 0, scale, 1), 0, 2)
    return np.stack([phi.second_moment(V[0]), phi.pair(V[0], V[2], gap), phi.second_moment(V[2])])


def _start(rho: float, paths: int) -> np.ndarray:
    return np.broadcast_to(np.array([1.0, rho, 1.0])[:, None], (3, paths))


def _nonzero(V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    V = V[:, (V[0] > 0) & (V[2] > 0)]
    return np.log(V[0]), np.clip(V[1] / np.sqrt(V[0]) / np.sqrt(V[2]), -1, 1)


def _neurons(V: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw (2, paths, n) normal numbers with covariances V_11, V_12, V_22 in the rows of V."""
    root = np.sqrt(V[0])
    mixed = np.divide(V[1], root, out=np.zeros_like(root), where=root > 0)
    rest = np.sqrt(np.maximum(V[2] - mixed**2, 0))
    g = rng.standard_normal((2, V.shape[1], n))
    return np.stack([root[:, None] * g[0], mixed[:, None] * g[0] + rest[:, None] * g[1]])


def _products(x: np.ndarray) -> np.ndarray:
    """Return V_11, V_12 and V_22 of each path."""
    sums = [np.einsum("pn,pn->p", x[a], x[b]) for a, b in ((0, 0), (0, 1), (1, 1))]
    return np.stack(sums) / x.shape[2]
