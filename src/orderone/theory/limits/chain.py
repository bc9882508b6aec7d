"""Correlation of two inputs from layer to layer in an unshaped ReLU network.

At infinite width it is a recursion, at width n to leading order a Markov chain:

    rho_{l+1} = 2 K_1(rho_l)                                                                S3 (4.3)
    rho_{l+1} = 2 K_1(rho_l) + mu_r(rho_l) / n + sigma_r(rho_l) xi_l / sqrt(n)             S3 (4.13)
    mu_r      = 1/2 [K_1 (4 K_2 + 18) - 8 K_31]                                            S3 (4.14)
    sigma_r^2 = 2 [K_1^2 (4 K_2 + 6) - 8 K_1 K_31 + 2 K_2]

with c = 2 and M_2 = 5 in (4.14). Everything is computed for the gap 1 - rho, which falls as
9 pi^2 / (2 l^2). With a = f_1 / 2 pi, b = f_2 / 2 pi and h = f_31 / 2 pi of `relu_moments` the
constants cancel analytically,

    1 - 2 K_1 = gap - 2 a
    mu_r      = -rho sin^2 + rho b + a (10 + 2 rho^2 + 2 b) - 4 h
    sigma_r^2 = 2 [sin^4 - 4 rho sin^2 a + (2 + rho^2) b - 4 rho h
                   + a^2 (8 + 4 rho^2) + 4 rho a b - 8 a h + 4 a^2 b]

and the expansion (4.16) follows; erratum S3.6 lists its first omitted terms.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from math import pi

import array_api_compat
import numpy as np

from orderone.core.covariances import array, bounded
from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Array, ArrayLike, Count, Number
from orderone.core.normals import Normals
from orderone.theory.limits.relu_moments import angle_of_gap, f1, f2, f31

# Limit of l^2 (1 - rho_l) at infinite width: S3 (4.6) with its c_1 = 2 sqrt(2) / (3 pi).
Q_INFINITY = 9 * pi**2 / 2


def mu_r(rho: ArrayLike) -> Array:
    """Drift of the correlation at order 1/n: S3 (4.14)."""
    return _moments(_gap(rho))[1]


def sigma_r2(rho: ArrayLike) -> Array:
    """Variance of the correlation at order 1/n: S3 (4.14)."""
    return _moments(_gap(rho))[2]


def infinite_width_q(rho0: Number, depth: Count) -> np.ndarray:
    """Return q_l = l^2 (1 - rho_l) for l = 1 ... depth at infinite width: S3 (4.2)-(4.3).

    It tends to 9 pi^2 / 2, slowly.
    """
    gap = _gap(rho0, "rho0", single=True)[()]
    depth = count(depth, "depth")
    gaps = np.empty(depth)
    for layer in range(depth):
        gap = gap - f1(angle_of_gap(gap)) / pi
        gaps[layer] = gap
    return np.arange(1, depth + 1) ** 2 * gaps


def correlation_chain(
    rho0: ArrayLike, width: Count, depth: Count, samples: Count = 8192, seed: Count = 0
) -> Array:
    """Return 1 - rho after `depth` layers of the Markov chain, one for each sample.

    (4.13) does not fix the distribution of xi. Here the gap is multiplied by a lognormal factor
    with the two moments of (4.13), so that correlations stay in [-1, 1]: with normal steps one
    sample in a hundred would exceed 1 at width 50.
    """
    rho, xp = array(rho0, "rho0")
    width = count(width, "width")
    depth = count(depth, "depth", least=0)
    samples = count(samples, "samples")
    zeros = xp.zeros(samples, dtype=rho.dtype, device=array_api_compat.device(rho))
    gap = _gap(rho, "rho0", single=True) + zeros
    normals = Normals(gap, count(seed, "seed", least=0))
    for _ in range(depth):
        gap = _step(gap, width, normals(samples))
    return gap


def _step(gap: Array, width: int, xi: Array) -> Array:
    xp = array_api_compat.array_namespace(gap)
    limit, mu, variance = _moments(gap)
    mean = limit - mu / width
    alive = mean > xp.finfo(gap.dtype).smallest_normal
    mean = xp.where(alive, mean, xp.ones_like(mean))
    spread = xp.log1p((xp.sqrt(variance) / mean) ** 2 / width)
    moved = bounded(mean * xp.exp(xp.sqrt(spread) * xi - spread / 2), 0.0, 2.0)
    return xp.where(alive, moved, xp.zeros_like(gap))


def _moments(gap: Array) -> tuple[Array, Array, Array]:
    """Return the gap of the next layer at infinite width, mu_r and sigma_r^2."""
    theta = angle_of_gap(gap)
    rho = 1 - gap
    sin2 = gap * (2 - gap)
    a = f1(theta) / (2 * pi)
    b = f2(theta) / (2 * pi)
    h = f31(theta) / (2 * pi)
    mu = -rho * sin2 + rho * b + a * (10 + 2 * rho**2 + 2 * b) - 4 * h
    linear = -4 * rho * sin2 * a + (2 + rho**2) * b - 4 * rho * h
    variance = 2 * (
        sin2**2 + linear + a**2 * (8 + 4 * rho**2) + 4 * rho * a * b - 8 * a * h + 4 * a**2 * b
    )
    return gap - 2 * a, mu, bounded(variance, 0.0)


def _gap(values: ArrayLike, name: str = "rho", single: bool = False) -> Array:
    rho, xp = array(values, name)
    if single and rho.ndim:
        raise InputError(
            f"{name}: expected one correlation, got shape {tuple(rho.shape)}", argument=name
        )
    if not bool(xp.all((rho >= -1) & (rho <= 1))):
        raise InputError(f"{name}: expected a correlation in [-1, 1], got {rho!r}", argument=name)
    return 1 - rho
