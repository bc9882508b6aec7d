"""Gaussian moments of ReLU-like activations with slopes s_+ and s_-, and their approximations.

    phi_s(x)      = s_+ relu(x) - s_- relu(-x)                          S3 (B.1); erratum S3.8
    J_{p,r}(rho)  = E relu(g)^p relu(g')^r                                           S3 (B.3)
                  = 2^{k/2} Gamma(k/2 + 1) / (2 pi) integral of cos(x)^p cos(x - theta)^r dx
    K_{p,r}(rho)  = E phi_s(g)^p phi_s(g')^r                                         S3 (4.10)
                  = (s_+^k + (-s_-)^k) J(rho) + (s_+^p (-s_-)^r + (-s_-)^p s_+^r) J(-rho)
    M_2           = E [c phi_s^2 - 1]^2 = c^2 3/2 (s_+^4 + s_-^4) - 1         S3 (4.12), (B.2)

g and g' have correlation rho = cos(theta), k = p + r, and x runs from theta - pi/2 to pi/2: polar
coordinates. M_2 is 5 for the ReLU. c K_1 with c = 2 / (s_+^2 + s_-^2) is the correlation after a
layer, rho + nu(rho) / n^{2p} + ... for shaped slopes (Lemma B.1).

Lemma B.2: E of a product of four phi_s tends to that of Gaussians, Isserlis' sum over pairs, with
an error of order n^-p. Lemma B.3: so does the covariance of c phi_s phi_s of two pairs.

S3: Li & Nica 2023, "Differential Equation Scaling Limits of Shaped and Unshaped Neural Networks".
"""

from math import gamma, pi
from typing import NamedTuple

import numpy as np

from orderone.core.covariances import array, covariance, numpy
from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import Array, ArrayLike, Count, Number
from orderone.core.reals import real
from orderone.theory.gaussian.panels import legendre
from orderone.theory.limits.drift import ReLUDrift
from orderone.theory.limits.shaped import ShapedReLU

LARGEST_POWER = 20
ORDER = 64  # of the rule over angles; exact to rounding for these powers
LARGEST_SLOPE = 1e6


class FourthMoment(NamedTuple):
    """E of a product of four shaped activations, sampled, and its limit."""

    value: float
    error: float  # standard error of the value
    limit: float  # Isserlis' sum, S3 (B.10)


def relu_moment(p: Count, r: Count, rho: ArrayLike) -> Array:
    """Return J_{p,r}, E relu(g)^p relu(g')^r, for powers from 0 to 20; relu^0 is 1[g > 0]."""
    p = count(p, "p", least=0, most=LARGEST_POWER)
    r = count(r, "r", least=0, most=LARGEST_POWER)
    theta = np.arccos(correlations(rho))
    nodes, weights = legendre(ORDER)
    span = pi - theta
    x = theta[..., None] - pi / 2 + span[..., None] * nodes
    cosines = np.maximum(np.cos(x), 0) ** p * np.maximum(np.cos(x - theta[..., None]), 0) ** r
    k = p + r
    return 2 ** (k / 2) * gamma(k / 2 + 1) / (2 * pi) * span * (cosines @ weights)


def shaped_moment(p: Count, r: Count, rho: ArrayLike, plus: Number, minus: Number) -> Array:
    """Return K_{p,r} for the slopes s_+ = `plus` and s_- = `minus`, and powers from 1 to 20."""
    p = count(p, "p", most=LARGEST_POWER)
    r = count(r, "r", most=LARGEST_POWER)
    up = _slope(plus, "plus")
    down = -_slope(minus, "minus")
    values = correlations(rho)
    same = up ** (p + r) + down ** (p + r)
    across = up**p * down**r + down**p * up**r
    return same * relu_moment(p, r, values) + across * relu_moment(p, r, -values)


def shaped_normalizer(plus: Number, minus: Number) -> float:
    """Return c with c E phi_s(g)^2 = 1."""
    square = _slope(plus, "plus") ** 2 + _slope(minus, "minus") ** 2
    if square == 0:
        raise InputError("plus, minus: expected a slope other than 0", argument="plus")
    return 2 / square


def shaped_correlation(rho: ArrayLike, plus: Number, minus: Number) -> Array:
    """Return c K_1(rho), the correlation after one layer of infinite width: S3 (B.4), (B.6)."""
    return shaped_normalizer(plus, minus) * shaped_moment(1, 1, rho, plus, minus)


def square_variance(plus: Number = 1.0, minus: Number = 0.0) -> float:
    """Return M_2 = E [c phi_s(g)^2 - 1]^2, which is 5 for the ReLU: S3 (4.12)."""
    c = shaped_normalizer(plus, minus)
    fourth = 1.5 * (_slope(plus, "plus") ** 4 + _slope(minus, "minus") ** 4)
    return c**2 * fourth - 1


def covariance_drift(V: ArrayLike, c_plus: Number = 0.0, c_minus: Number = -1.0) -> Array:
    """Return b(V) = nu(rho) sqrt(V V) of the covariance SDE, entry by entry: S3 (2.8)."""
    matrix, _ = covariance(V, "V")
    return ReLUDrift(ShapedReLU(c_plus, c_minus).drift).rate(matrix)


def fourth_moment(
    correlations: ArrayLike,
    width: Count,
    c_plus: Number = 0.0,
    c_minus: Number = -1.0,
    p: Number = 0.5,
    samples: Count = 2**16,
    seed: Count = 0,
) -> FourthMoment:
    """Return E of the product of four phi_s(g), for a (4, 4) correlation matrix: Lemma B.2.

    Control variates are products of the Gaussians themselves, so that errors shrink with the
    difference that the lemma bounds.
    """
    R = _four(correlations)
    plus, minus = ShapedReLU(c_plus, c_minus).slopes(width, p)
    g = _draws(R, samples, seed)
    shaped = np.where(g > 0, plus * g, minus * g)
    limit = float(R[0, 1] * R[2, 3] + R[0, 2] * R[1, 3] + R[0, 3] * R[1, 2])
    difference = shaped.prod(axis=1) - g.prod(axis=1)
    error = float(difference.std(ddof=1) / len(g) ** 0.5)
    return FourthMoment(limit + float(difference.mean()), error, limit)


def product_covariance(
    correlations: ArrayLike,
    width: Count,
    c_plus: Number = 0.0,
    c_minus: Number = -1.0,
    p: Number = 0.5,
    samples: Count = 2**16,
    seed: Count = 0,
) -> FourthMoment:
    """Return E[R^12 R^34], the covariance of c phi_s phi_s of two pairs: Lemma B.3.

    Its limit is rho_13 rho_24 + rho_14 rho_23.
    """
    R = _four(correlations)
    shape = ShapedReLU(c_plus, c_minus)
    plus, minus = shape.slopes(width, p)
    c = shape.normalizer(width, p)
    fourth = fourth_moment(R, width, c_plus, c_minus, p, samples, seed)
    means = c * shaped_moment(1, 1, R[[0, 2], [1, 3]], plus, minus)
    value = c**2 * fourth.value - float(means.prod())
    limit = float(R[0, 2] * R[1, 3] + R[0, 3] * R[1, 2])
    return FourthMoment(value, c**2 * fourth.error, limit)


def _draws(R: np.ndarray, samples: Count, seed: Count) -> np.ndarray:
    """Return draws with the correlations R."""
    number = count(samples, "samples", least=16, most=10**8)
    values, vectors = np.linalg.eigh(R)
    root = vectors * np.sqrt(np.maximum(values, 0))
    rng = np.random.default_rng(count(seed, "seed", least=0))
    return rng.standard_normal((number, 4)) @ root.T


def _four(correlations: ArrayLike) -> np.ndarray:
    R, _ = covariance(correlations, "correlations")
    R = numpy(R)
    if R.shape != (4, 4) or not np.allclose(np.diagonal(R), 1):
        raise InputError(
            "correlations: expected a (4, 4) correlation matrix, with 1 on the diagonal; got the"
            f" shape {R.shape}",
            argument="correlations",
        )
    return R


def correlations(values: ArrayLike) -> np.ndarray:
    """Return correlations as an array, or raise an InputError."""
    rho, _ = array(values, "rho")
    rho = numpy(rho)
    if not ((rho >= -1) & (rho <= 1)).all():
        raise InputError(f"rho: expected correlations in [-1, 1], got {rho!r}", argument="rho")
    return rho


def _slope(value: Number, name: str) -> float:
    return real(value, name, least=-LARGEST_SLOPE, most=LARGEST_SLOPE)
