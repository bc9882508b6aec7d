"""S3 (4.6), (4.10)-(4.16), (A.6)-(A.7), Lemmas B.1 to B.3: closed forms, draws and slopes."""

from math import pi

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from orderone.core.errors import InputError
from orderone.theory import limits

RHO = np.array([-1.0, -0.6, 0.0, 0.3, 0.9, 1.0])


def test_moments_of_relu_are_the_closed_forms():
    np.testing.assert_allclose(limits.relu_moment(0, 0, RHO), limits.K0(RHO), atol=1e-14)
    np.testing.assert_allclose(limits.relu_moment(1, 1, RHO), limits.K1(RHO), atol=1e-14)
    np.testing.assert_allclose(limits.relu_moment(2, 2, RHO), limits.K2(RHO), atol=1e-13)
    np.testing.assert_allclose(limits.relu_moment(3, 1, RHO), limits.K31(RHO), atol=1e-13)
    assert limits.relu_moment(4, 0, 1.0) == pytest.approx(1.5)
    assert limits.relu_moment(10, 10, 1.0) == pytest.approx(654729075 / 2)  # 19!! / 2


def test_moments_of_shaped_activations_against_draws():
    rng = np.random.default_rng(0)
    g = rng.standard_normal(400_000)
    other = 0.4 * g + 0.84**0.5 * rng.standard_normal(400_000)

    def phi(x):
        return np.where(x > 0, 1.2 * x, 0.7 * x)

    for p, r in ((1, 1), (2, 1), (2, 2), (3, 1)):
        draws = phi(g) ** p * phi(other) ** r
        found = limits.shaped_moment(p, r, 0.4, 1.2, 0.7)
        assert found == pytest.approx(draws.mean(), abs=5 * draws.std() / 400_000**0.5)
    c = limits.shaped_normalizer(1.2, 0.7)
    drawn = ((c * phi(g) ** 2 - 1) ** 2).mean()
    assert limits.square_variance(1.2, 0.7) == pytest.approx(drawn, rel=0.03)
    assert limits.square_variance() == pytest.approx(5)


def test_correlations_of_shaped_networks():
    """Lemma B.1 with the sign of erratum S3.2: n (c K_1 - rho) tends to nu."""
    rho = np.array([-1.0, 0.0, 0.8])
    for n in (10**4, 10**6):
        plus, minus = limits.ShapedReLU().slopes(n)
        difference = n * (limits.shaped_correlation(rho, plus, minus) - rho)
        np.testing.assert_allclose(difference, limits.nu(rho), atol=2 / n**0.5)
    np.testing.assert_allclose(limits.shaped_correlation(rho, 1.0, 0.0), 2 * limits.K1(rho))
    drift = limits.covariance_drift([[4.0, 1.0], [1.0, 1.0]])
    assert drift[0, 1] == pytest.approx(2 * limits.nu(0.5))


def test_the_expansion_of_a_step():
    """(4.16) against the exact moments: remainders have the orders of erratum S3.6."""
    gaps = np.array([1e-2, 1e-3])
    step = limits.expanded_step(1 - gaps)
    exact = 2 * limits.K1(1 - gaps)
    rest = exact - step.mean
    np.testing.assert_allclose(rest, 9 * 2**0.5 / (1680 * pi) * gaps**3.5, rtol=0.05)
    drift = limits.mu_r(1 - gaps) - step.drift
    np.testing.assert_allclose(drift, -(gaps**3), rtol=0.25)
    noise = np.sqrt(limits.sigma_r2(1 - gaps)) - step.noise
    slope = np.log(noise[1] / noise[0]) / np.log(gaps[1] / gaps[0])
    assert slope == pytest.approx(2, abs=0.1)


def test_q_of_infinite_width():
    q = limits.infinite_width_q(0.3, 4000)
    times = np.array([200.0, 1000.0, 4000.0])
    found = limits.infinite_width_q_ode(q[199], 200.0, times)
    np.testing.assert_allclose(found, q[[199, 999, 3999]], rtol=0.01)
    c = 2 * 2**0.5 / (3 * pi)
    solved = solve_ivp(
        lambda t, q: (2 * q - c * q**1.5) / t, (0.5, 2.0), [0.7], rtol=1e-10, atol=1e-12
    )
    assert limits.infinite_width_q_ode(0.7, 0.5, 2.0) == pytest.approx(solved.y[0, -1], rel=1e-7)
    assert limits.infinite_width_q_ode(1.0, 1.0, 1e9) == pytest.approx(limits.Q_INFINITY, rel=1e-6)
    with pytest.raises(InputError, match="t0"):
        limits.infinite_width_q_ode(1.0, 1.0, 0.5)


def test_coefficients_of_a_chain():
    """(A.6)-(A.7) for log gaps of the chain: drift and diffusion of the SDE (4.8)."""
    n = 4000
    rng = np.random.default_rng(0)

    def step(x):
        gap = np.exp(x[0])
        mean, drift, noise = limits.expanded_step(1 - gap)
        new = mean + drift / n + noise * rng.standard_normal(200_000) / n**0.5
        return np.log(1 - new)

    found = limits.chain_coefficients(step, np.log(1e-9), 1 / n)
    # d log(1 - rho) = (+2 - 4) dt + 2 sqrt(2) dB, beside the term of infinite width
    assert abs(found.drift[0] + 2) < 6 * found.drift_error[0] + 0.15
    assert found.diffusion[0, 0] == pytest.approx(8, rel=0.02)
    assert found.jumps == 0


def test_fourth_moments_approach_those_of_gaussians():
    """Lemmas B.2 and B.3: the difference of B.2 falls as n^-p; that of B.3 falls faster."""
    R = np.full((4, 4), 0.4) + 0.6 * np.eye(4)
    differences = []
    for n in (64, 1024):
        found = limits.fourth_moment(R, n)
        assert abs(found.value - found.limit) > 5 * found.error
        differences.append(abs(found.value - found.limit))
        pair = limits.product_covariance(R, n)
        assert pair.limit == pytest.approx(0.32)
        assert abs(pair.value - pair.limit) < 5 * pair.error + 4 / n
    assert np.log(differences[1] / differences[0]) / np.log(16) == pytest.approx(-0.5, abs=0.1)
    # without shaping, p = 0, the limit is not reached
    plain = limits.product_covariance(R, 64, p=0.0)
    assert abs(plain.value - plain.limit) > 10 * plain.error
    with pytest.raises(InputError, match="correlation matrix"):
        limits.fourth_moment(np.eye(3), 64)
