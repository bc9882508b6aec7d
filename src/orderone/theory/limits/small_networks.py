"""Networks too shallow or too narrow for limits: sampled as they are, for two inputs.

    z = L g,   V' = (c/n) sum_i phi(z_i) phi(z_i)^T,   V = L L^T                                    S3 (2.2), (3.4)-(3.5)
    z' = z + beta h,   h_i ~ N(0, <relu(z), relu(z)> / n),   V = <z, z> / n                         S3 (2.12), erratum S3.10

Given the layer below, neurons are independent: no weights are drawn. `measure.sample_network` is for large networks.
"""

from collections.abc import Callable

import numpy as np

from orderone.theory.activations import Activation

Elementwise = Callable[[np.ndarray], np.ndarray]
SHALLOW, NARROW = 20, 30  # layers and neurons below which the laws of large depth and width are off by some %
MOST_NEURONS = 20_000  # width times depth that is sampled
NUMBERS = 10_000_000


def is_small(n: int, d: int) -> bool:
    return d < SHALLOW or n < NARROW


def can_be_sampled(n: int, d: int) -> bool:
    return n * d <= MOST_NEURONS


def bent(minor: float) -> Elementwise:
    """A line with slope 1 for x > 0 and `minor` for x < 0, times what keeps the mean of V."""
    return lambda z: np.where(z > 0, z, minor * z) * np.sqrt(2 / (1 + minor**2))


def normalized(phi: Activation) -> Elementwise:
    """phi times what keeps V at 1: c = 1 / E phi(g)^2."""
    size = float(phi.second_moment(1.0)) ** 0.5
    return lambda z: phi(z) / size


def sampled(phi: Elementwise, beta: float | None, n: int, d: int, rho: float) -> tuple[np.ndarray, np.ndarray]:
    """log V_11 and the correlation of many networks; those that died are left out. With `beta`, residual ReLU networks."""
    rng, paths = np.random.default_rng(0), int(np.clip(NUMBERS // (n * d), 512, 4096))
    V = np.broadcast_to(np.array([1.0, rho, 1.0])[:, None], (3, paths))
    if beta is None:
        for _ in range(d):
            V = _products(phi(_neurons(V, n, rng)))
    else:
        z = _neurons(V, n, rng)
        for _ in range(d):
            z = z + beta * _neurons(_products(np.maximum(z, 0)), n, rng)
        V = _products(z)
    V = V[:, (V[0] > 0) & (V[2] > 0)]
    return np.log(V[0]), np.clip(V[1] / np.sqrt(V[0]) / np.sqrt(V[2]), -1, 1)


def _neurons(V: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """(2, paths, n) normal numbers with covariances V_11, V_12, V_22 in the rows of V."""
    root = np.sqrt(V[0])
    mixed = np.divide(V[1], root, out=np.zeros_like(root), where=root > 0)
    rest = np.sqrt(np.maximum(V[2] - mixed**2, 0))
    g = rng.standard_normal((2, V.shape[1], n))
    return np.stack([root[:, None] * g[0], mixed[:, None] * g[0] + rest[:, None] * g[1]])


def _products(x: np.ndarray) -> np.ndarray:
    pairs = ((0, 0), (0, 1), (1, 1))
    return np.stack([np.einsum("pn,pn->p", x[a], x[b]) for a, b in pairs]) / x.shape[2]
