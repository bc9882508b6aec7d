"""Covariance ODEs: reference, the equations as printed solved by brute force, closed forms, and
what errata refute."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from support.errors import refuses

from orderone.theory import covariance_ode, limits, resnet_ode

V0 = np.array([[1.0, 0.3], [0.3, 1.0]])


def inputs(m: int, seed: int = 0) -> np.ndarray:
    X = np.random.default_rng(seed).standard_normal((m, 2 * m))
    return X @ X.T / (2 * m)


def test_reference():
    assert limits.correlation_ode(0.3, 2.0) == pytest.approx(0.4516895302065198, abs=1e-8)
    V = resnet_ode(V0, 1.0)
    assert V[0, 0] == pytest.approx(1.6487212707012424, abs=1e-8)
    assert V[0, 1] == pytest.approx(0.6313722990766346, abs=1e-8)


def brute_force(V: np.ndarray, t: float, drift) -> np.ndarray:
    """The matrix equation itself, entry by entry."""

    def rate(_, v):
        U = v.reshape(V.shape)
        scale = np.sqrt(np.outer(U.diagonal(), U.diagonal()))
        return (drift(np.clip(U / scale, -1, 1)) * scale).ravel()

    return solve_ivp(rate, (0, t), V.ravel(), rtol=1e-10, atol=1e-12).y[:, -1].reshape(V.shape)


@pytest.mark.parametrize("m", [1, 2, 5])
def test_the_matrix_equations_have_these_solutions(m):
    V = inputs(m)
    shaped = brute_force(V, 1.7, lambda rho: limits.nu(rho, 0.5, -1.0))
    np.testing.assert_allclose(covariance_ode(V, 1.7, 0.5, -1.0), shaped, atol=1e-8)
    residual = brute_force(V, 1.7, limits.K1)
    np.testing.assert_allclose(resnet_ode(V, 1.7), residual, atol=1e-8)


def test_the_residual_network_is_not_the_shaped_one():
    """Erratum S3.3: covariances differ by e^{t/2}; correlations are the same."""
    shaped, residual = covariance_ode(V0, 1.0), resnet_ode(V0, 1.0)
    np.testing.assert_allclose(residual, np.exp(0.5) * shaped, rtol=1e-9)
    assert abs(residual[0, 0] - shaped[0, 0]) > 0.6


def test_near_one_the_gap_decays_as_a_square():
    """1 - rho ~ 2 (3 / (2 k t))^2 for large t, from ds/dt = -(2/3) k s^2."""
    k = 1 / (2 * np.pi)
    for t in (1e4, 1e6):
        gap = 1 - float(limits.correlation_ode(-1.0, t))
        assert gap == pytest.approx(2 * (3 / (2 * k * t)) ** 2, rel=0.02)


def test_times():
    scalar = covariance_ode(V0, 1.0)
    assert scalar.shape == (2, 2)
    several = covariance_ode(V0, [2.0, 0.0, 1.0])
    assert several.shape == (3, 2, 2)
    np.testing.assert_allclose(several[2], scalar, atol=1e-10)
    np.testing.assert_allclose(several[1], V0, atol=1e-15)
    assert resnet_ode(V0, np.linspace(0, 1, 7)).shape == (7, 2, 2)
    assert limits.correlation_ode([0.1, 0.2], [0.0, 1.0, 2.0]).shape == (3, 2)
    np.testing.assert_allclose(covariance_ode(V0, 3.0, 0.4, 0.4), V0)  # c_+ = c_-: nothing moves


def test_special_inputs():
    zero = np.array([[0.0, 0.0, 0.0], [0.0, 2.0, 1.0], [0.0, 1.0, 3.0]])
    V = covariance_ode(zero, 1.0)
    assert not V[0].any()
    assert V[1, 1] == 2
    same = np.full((2, 2), 0.7)
    np.testing.assert_allclose(covariance_ode(same, 5.0), same, atol=1e-12)
    opposite = covariance_ode([[1, -1], [-1, 1]], 1.0)
    assert -1 < opposite[0, 1] < 0
    assert covariance_ode([[4.0]], 1.0) == pytest.approx(4.0)
    huge = covariance_ode(V0 * 1e200, 1.0)
    np.testing.assert_allclose(huge, 1e200 * covariance_ode(V0, 1.0))


def test_torch_in_torch_out():
    V = torch.tensor([[1.0, 0.3], [0.3, 1.0]])
    found = resnet_ode(V, 1.0)
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), resnet_ode(V0, 1.0), rtol=1e-6)
    assert covariance_ode(V.double(), [1.0, 2.0]).shape == (2, 2, 2)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 10**6), st.floats(0, 50), st.floats(-3, 3))
def test_solutions_are_covariances(m, seed, t, c):
    V = covariance_ode(inputs(m, seed), t, c, -1.0)
    assert np.array_equal(V, V.T)
    assert np.linalg.eigvalsh(V)[0] > -1e-9


BAD = [
    (
        [[1.0, 0.5], [0.2, 1.0]],
        "not-a-covariance",
        "V0",
        "by 0.3",
    ),
    (
        [[1.0, 1.2], [1.2, 1.0]],
        "not-a-covariance",
        "V0",
        "-0.2",
    ),
    ([[1.0, 0.3]], "invalid-argument", "V0", "shape (1"),
    (1.0, "invalid-argument", "V0", "covariance matrix"),
    ([], "invalid-argument", "V0", "covariance matrix"),
    ([[float("nan")]], "invalid-argument", "V0", "finite numbers"),
    ("ab", "invalid-argument", "V0", "array"),
    ([[-1.0]], "not-a-covariance", "V0", "positive semidefinite"),
]


@pytest.mark.parametrize(("V", "code", "argument", "words"), BAD)
@pytest.mark.parametrize("ode", [covariance_ode, resnet_ode])
def test_wrong_covariances(ode, V, code, argument, words):
    with refuses(code, argument=argument) as caught:
        ode(V, 1.0)
    assert words in str(caught.value)


@pytest.mark.parametrize("t", [-1.0, [0.0, -0.1], float("nan"), [], "now"])
def test_wrong_times(t):
    with refuses("invalid-argument", argument="t"):
        covariance_ode(V0, t)


def test_times_may_repeat_and_come_in_any_order():
    once = covariance_ode(V0, 1.0)
    np.testing.assert_allclose(covariance_ode(V0, [1, 1]), [once, once], atol=1e-12)
    np.testing.assert_allclose(covariance_ode(V0, [0, 1, 0]), [V0, once, V0], atol=1e-12)
    assert covariance_ode(V0, np.ones((2, 2))).shape == (2, 2, 2, 2)
    assert resnet_ode(V0, [2, 1, 2]).shape == (3, 2, 2)
    np.testing.assert_allclose(
        limits.correlation_ode(0.3, [2.0, 0.0, 2.0])[[0, 2]], 0.4516895302065198, atol=1e-8
    )


@pytest.mark.parametrize(
    "wrong", [[[1, 1e-6], [1e-6, 1e-14]], [[1, 1e-6], [1e-6, 0]], [[1e14, 1e4], [1e4, 1e-7]]]
)
def test_small_inputs_are_checked_as_large_ones_are(wrong):
    with refuses("not-a-covariance", argument="V0"):
        covariance_ode(wrong, 1.0)


def test_inputs_of_very_different_sizes_are_covariances():
    scale = np.array([1e-150, 1e-12, 1.0, 1e8])
    V = inputs(4) * np.outer(scale, scale)
    assert np.all(np.isfinite(covariance_ode(V, 1.0)))
    assert np.all(np.isfinite(covariance_ode([[1, 1e-17], [1e-17, 0]], 1.0)))  # rounding
