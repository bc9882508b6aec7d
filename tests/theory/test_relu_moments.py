"""Moments of the ReLU and coefficients of the correlation chain: reference, quadrature at many
digits, series, sampling."""

from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refuses

from orderone.theory import limits
from orderone.theory.limits import K0, K1, K2, K31, mu_r, nu, sigma_r2
from orderone.theory.limits.chain import _moments

REFERENCE = [
    (K2, 0.3, 0.48886386895537803, 1e-12),
    (K31, 0.3, 0.5859564589769072, 1e-12),
    (K0, 0.9, 0.42821685343564686, 1e-12),
    (K1, 0.9, 0.454769199422336, 1e-12),
    (K31, 0.9, 1.3511265323142598, 1e-12),
    (mu_r, 0.3, 0.06451967966397534, 1e-10),
    (sigma_r2, 0.3, 0.6194962274718468, 1e-10),
    (mu_r, 0.9, -0.12078106330844922, 1e-10),
    (sigma_r2, 0.9, 0.0536815386700944, 1e-10),
    (sigma_r2, 0.99, 0.0007260784181521895, 1e-10),
    (nu, -1.0, 0.5, 1e-12),
    (nu, -0.5, 0.3044988905221147, 1e-12),
]


@pytest.mark.parametrize(("function", "rho", "value", "tolerance"), REFERENCE)
def test_reference(function, rho, value, tolerance):
    assert float(function(rho)) == pytest.approx(value, abs=tolerance)


def test_half_f_is_the_relu_kernel_and_not_nu():
    """Erratum S3.3: f / 2 = nu + rho / 2 = K_1, which vanishes at -1; (2.14) claims f / 2 = nu,
    which is 1/2 there."""
    rho = np.linspace(-1, 1, 41)
    half_f = (rho * np.arcsin(rho) + np.sqrt(1 - rho**2)) / (2 * np.pi) + rho / 4
    np.testing.assert_allclose(half_f, nu(rho) + rho / 2, atol=1e-14)
    np.testing.assert_allclose(half_f, K1(rho), atol=1e-14)
    assert half_f[0] == pytest.approx(0, abs=1e-12)
    assert abs(half_f[0] - nu(-1.0)) > 0.4


def test_nu_is_the_exact_drift_of_a_shaped_layer():
    """Erratum S3.2: n (c K_1 - rho) at n = 1e8 has the sign of (2.8), not the one printed in (3.7),
    (3.12) and (B.5)."""
    rho, n = np.linspace(-1, 1, 21), 10**8
    plus, minus = limits.ShapedReLU(0.0, -1.0).slopes(n)
    shaped = (plus**2 + minus**2) * K1(rho) - 2 * plus * minus * K1(-rho)  # (B.4)
    exact = n * (2 / (plus**2 + minus**2) * shaped - rho)
    np.testing.assert_allclose(exact, nu(rho), atol=2e-4)
    printed = (np.sqrt(1 - rho**2) + rho * np.arccos(rho)) / (2 * np.pi)
    assert np.abs(exact - printed).max() > 0.3


def moment(rho: float, p: int, r: int) -> Any:
    """E relu(g)^p relu(h)^r in polar coordinates."""
    angle: Any = mpmath.acos(rho)
    radial: Any = mpmath.quad(lambda x: x ** (p + r + 1) * mpmath.exp(-x * x / 2), [0, 3, 12])
    part: Any = mpmath.quad(
        lambda a: mpmath.cos(a) ** p * mpmath.cos(a - angle) ** r,
        [angle - mpmath.pi / 2, mpmath.pi / 2],
    )
    return radial * part / (2 * mpmath.pi)


@pytest.mark.parametrize("rho", [-0.999, -0.4, 0.0, 0.77, 0.878, 0.99999])
def test_moments_are_what_quadrature_says(rho):
    for function, p, r in ((K0, 0, 0), (K1, 1, 1), (K2, 2, 2), (K31, 3, 1)):
        assert float(function(rho)) == pytest.approx(float(moment(rho, p, r)), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("gap", [1e-14, 1e-10, 1e-6, 1e-3, 0.1, 0.125, 0.7, 1.5])
def test_coefficients_keep_their_digits_near_one(gap):
    """(4.14) as printed, at 60 digits."""
    mpmath.mp.dps = 60
    rho = 1 - mpmath.mpf(gap)
    q, a = mpmath.sqrt(1 - rho**2), mpmath.acos(-rho)
    k1 = (q + rho * a) / (2 * mpmath.pi)
    k2 = (3 * rho * q + a * (1 + 2 * rho**2)) / (2 * mpmath.pi)
    k31 = (q * (2 + rho**2) + 3 * a * rho) / (2 * mpmath.pi)
    mu = (k1 * (4 * k2 + 18) - 8 * k31) / 2
    variance = 2 * (k1**2 * (4 * k2 + 6) - 8 * k1 * k31 + 2 * k2)
    found = _moments(np.asarray(gap))
    mpmath.mp.dps = 15
    for value, exact in zip(found, (1 - 2 * k1, mu, variance), strict=True):
        assert float(value) == pytest.approx(float(exact), rel=1e-11)


def test_expansion_near_one_is_4_16_with_the_errata():
    """Erratum S3.6: the first omitted terms are of order 7/2, 3 and 2 in the gap, not all of order
    4."""
    gap = 1e-4
    limit, mu, variance = (float(x) for x in _moments(np.asarray(gap)))
    root = 2**0.5
    printed = gap - 2 * root / (3 * np.pi) * gap**1.5 - root / (30 * np.pi) * gap**2.5
    assert printed - limit == pytest.approx(9 * root / (1680 * np.pi) * gap**3.5, rel=0.05)
    printed = (
        -2 * gap + 4 * root / np.pi * gap**1.5 + 3 * gap**2 - 73 * root / (15 * np.pi) * gap**2.5
    )
    assert mu - printed == pytest.approx(-(gap**3), rel=0.1)
    printed = 2 * root * gap - 56 / (15 * np.pi) * gap**1.5
    assert variance**0.5 - printed == pytest.approx(
        -(root + 242 * root / (225 * np.pi**2)) * gap**2, rel=0.1
    )


def test_chain_coefficients_are_moments_of_a_layer():
    """One layer of width n, by sampling: mean and variance of the next correlation at order 1/n."""
    n, samples, rho = 64, 40_000, 0.6
    g = np.random.default_rng(0).standard_normal((2, samples, n))
    x, y = np.maximum(g[0], 0), np.maximum(rho * g[0] + 0.8 * g[1], 0)
    found = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
    assert n * found.var() == pytest.approx(float(sigma_r2(rho)), rel=0.06)
    assert n * (found.mean() - 2 * float(K1(rho))) == pytest.approx(float(mu_r(rho)), abs=0.05)


@settings(deadline=None)
@given(st.floats(-1, 1))
def test_everything_is_finite_and_in_its_range(rho):
    assert 0 <= float(K0(rho)) <= 0.5
    assert -1e-16 <= float(K1(rho)) <= 0.5
    assert float(nu(rho)) >= 0
    assert float(sigma_r2(rho)) >= 0


@pytest.mark.parametrize("rho", [1.0001, -2, float("nan"), "a"])
def test_numbers_that_are_no_correlation_are_refused(rho):
    with refuses("invalid-argument", argument="rho"):
        K1(rho)


@pytest.mark.parametrize(
    ("call", "code", "argument", "words"),
    [
        (lambda: limits.K0(1.1), "invalid-argument", "rho", "1.1"),
        (lambda: limits.mu_r(1.1), "invalid-argument", "rho", "correlation"),
        (lambda: limits.nu(0.3, "a", 0), "invalid-argument", "c_plus", ""),  # type: ignore
        (
            lambda: limits.infinite_width_q([0.1, 0.2], 10),  # type: ignore
            "invalid-argument",
            "rho0",
            "one correlation",
        ),
        (
            lambda: limits.correlation_chain([0.1, 0.2], 10, 5, 4),
            "invalid-argument",
            "rho0",
            "one correlation",
        ),
        (
            lambda: limits.metric(np.ones((2, 2)), np.eye(2), np.eye(2)),
            "invalid-argument",
            "V",
            "",
        ),
        (lambda: limits.ks([], [1]), "invalid-argument", "x", ""),
    ],
)
def test_errors_name_the_argument(call, code, argument, words):
    with refuses(code, argument=argument) as caught:
        call()
    assert words in str(caught.value)
