"""Layer norms of finite width: fluctuations of the variance that they divide by.

    dG = (1/n) sum z_i^2 - G,      mG = ((1/n) sum z_i)^2                       S2 (1.48)-(1.49)
    F  = E[(G + dG - mG) / (G + eps + dG - mG)]                                 S2 (1.50)
    E[dG^p mG^q] = O(1/n) for p + q > 0                                         S2 (1.51)-(1.52)

for n Gaussian neurons z_i of mean 0 and variance G. Erratum S2.1: eps is inside the root. Here the
moments are exact: n mG / G and n (G + dG - mG) / G are independent chi-squared variables of 1 and
n - 1 degrees. To order 1/n,

    F  = G / (G + eps) - (eps G / (G + eps)^2 + 2 eps G^2 / (G + eps)^3) / n

For several tokens, the normalized kernel of one network is a mean over neurons and fluctuates:

    F_ab            = S_ab / sqrt((S_aa + eps) (S_bb + eps)),      S_ab = (1/n) sum z_ia z_ib
    n Cov(S_ab, S_cd) = G_ac G_bd + G_ad G_bc

and with w = W s, Var W = C_W / n, the fourth moment of different neurons i != j has the connected
part

    E[w_ia w_ib w_jc w_jd] - E[w_ia w_ib] E[w_jc w_jd] = C_W^2 Cov(F_ab, F_cd)  S2 (1.71)-(1.72)

S2: Dinan, Yaida & Zhang 2023, "Effective Theory of Transformers at Initialization".
"""

from dataclasses import dataclass
from math import comb

import numpy as np

from orderone.core.arrays import as_numpy
from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import ArrayLike, Count, Number
from orderone.core.reals import real
from orderone.theory.kernels.validation import check_semidefinite, floating, square

MOST_TOKENS = 32  # covariances have tokens^4 entries
NORMAL_WIDTH = 100_000  # beyond, the expansion has all digits


@dataclass(frozen=True)
class NormalizedVariance:
    """Variance of a neuron after a layer norm of n neurons."""

    limit: float  # G / (G + eps)
    correction: float  # of order 1/n
    exact: float


def norm_moment(p: Count, q: Count, n: Count, G: Number = 1.0) -> float:
    """Return E[dG^p mG^q] of n neurons: S2 (1.52)."""
    p = count(p, "p", least=0, most=20)
    q = count(q, "q", least=0, most=20)
    n = count(n, "n", least=2)
    variance = real(G, "G", least=0)
    # dG = G ((x + y) / n - 1), mG = G y / n: x, y chi-squared of n - 1 and 1 degrees
    total = 0.0
    for i in range(p + 1):
        for j in range(p - i + 1):
            sign = (-1.0) ** (p - i - j)
            ways = comb(p, i) * comb(p - i, j)
            total += sign * ways * _chi_squared(n - 1, i, n) * _chi_squared(1, j + q, n)
    return variance ** (p + q) * total


def _chi_squared(degrees: int, power: int, n: int) -> float:
    """Return E[(x / n)^power] of a chi-squared variable."""
    product = 1.0
    for k in range(power):
        product *= (degrees + 2 * k) / n
    return product


def normalized_variance(G: Number, eps: Number, n: Count) -> NormalizedVariance:
    """Return F of a layer norm over n neurons of variance G: S2 (1.50)."""
    variance = real(G, "G", above=0)
    small = real(eps, "eps", least=0)
    n = count(n, "n", least=2)
    limit = variance / (variance + small)
    slope = small * variance / (variance + small) ** 2
    bend = 2 * small * variance**2 / (variance + small) ** 3
    correction = -(slope + bend) / n
    if n > NORMAL_WIDTH or small == 0:
        return NormalizedVariance(limit, correction, limit + correction)
    from scipy.stats import chi2

    def mean(x: float) -> float:
        value = variance * x / n
        return value / (value + small)

    exact = float(chi2(n - 1).expect(mean))
    return NormalizedVariance(limit, correction, exact)


def normalized_covariance(G: ArrayLike, n: Count, eps: Number = 0.0) -> np.ndarray:
    """Return Cov(F_ab, F_cd) of a layer norm over n neurons, with indices (a, b, c, d).

    Times C_W^2 it is the connected fourth moment of S2 (1.72).
    """
    matrix = square(floating(G, "G")[1], "G")
    check_semidefinite(matrix, "G")
    K = as_numpy(matrix).astype(float)
    small = real(eps, "eps", least=0)
    n = count(n, "n")
    if len(K) > MOST_TOKENS or not (K.diagonal() + small > 0).all():
        raise InputError(
            f"G: expected at most {MOST_TOKENS} tokens, each with a variance above 0; got {len(K)}",
            argument="G",
        )
    S = np.einsum("ac,bd->abcd", K, K)
    S = (S + np.einsum("ad,bc->abcd", K, K)) / n
    root = np.sqrt(K.diagonal() + small)
    F = K / root[:, None] / root
    # dF_ab = dS_ab / (r_a r_b) - F_ab (dS_aa / r_a^2 + dS_bb / r_b^2) / 2
    tokens = np.arange(len(K))
    half = S / np.multiply.outer(root[:, None] * root, np.ones_like(K))
    own = S[tokens, tokens] / (root**2)[:, None, None]  # (a, c, d)
    half = half - F[:, :, None, None] * (own[:, None] + own[None, :]) / 2
    full = half / (root[:, None] * root)
    other = half[:, :, tokens, tokens] / root**2  # (a, b, c)
    return full - F[None, None] * (other[:, :, :, None] + other[:, :, None, :]) / 2
