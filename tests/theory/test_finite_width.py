"""Four-point vertices and Jacobians against closed forms and networks."""

from math import erf

import numpy as np
import pytest

from orderone.core.errors import InputError
from orderone.theory import MeanField, finite_width


def test_linear_networks_are_exact():
    """|z|^2 / n of a linear network is a product of chi-squared variables / n."""
    n, depth = 40, 6
    found = finite_width.four_point("linear", [n] * depth)
    np.testing.assert_allclose(found.variance, 1)
    np.testing.assert_allclose(found.correction, 0, atol=1e-12)
    # Var of the variance before layer l + 1: (1 + 2/n)^l - 1 = 2 l / n + O(1/n^2)
    np.testing.assert_allclose(found.vertex, 2 * np.arange(depth) / n, atol=1e-12)


def test_relu_by_hand():
    """E relu^2 = K/2, E relu^4 = 3 K^2 / 2: V_(l+1) = V_l + 5 K^2 / n for weight_var 2."""
    found = finite_width.four_point("relu", [10, 20, 30, 40], weight_var=2.0, q0=0.5)
    np.testing.assert_allclose(found.variance, 1, rtol=1e-12)
    expected = np.cumsum([0, 5 / 10, 5 / 20, 5 / 30])
    np.testing.assert_allclose(found.vertex, expected, rtol=1e-10)
    np.testing.assert_allclose(found.kurtosis, 3 * expected, rtol=1e-10)


def test_vertices_and_corrections_against_networks():
    n, depth, networks = 32, 4, 40_000
    theory = finite_width.four_point("tanh", [n] * depth, weight_var=1.8, bias_var=0.1, q0=1.0)
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1.9**0.5, (networks, n))  # the first layer, for an input of length 1
    for _ in range(depth - 2):
        h = np.tanh(z)
        variance = 1.8 * (h**2).mean(1) + 0.1
        z = rng.standard_normal((networks, n)) * np.sqrt(variance)[:, None]
    variance = 1.8 * (np.tanh(z) ** 2).mean(1) + 0.1
    assert theory.vertex[-1] == pytest.approx(variance.var(), rel=0.05)
    shift = variance.mean() - theory.variance[-1]
    error = variance.std() / networks**0.5
    assert abs(shift - theory.correction[-1]) < 5 * error + 0.1 * abs(theory.correction[-1])
    assert abs(shift) > 6 * error  # infinite width alone is refuted


@pytest.mark.parametrize("depth", [1, 4, 20])
def test_linear_jacobians(depth):
    gaussian = finite_width.jacobian_spectrum(MeanField("linear", 0.5, 0.1), depth)
    scale = 0.5**depth
    assert gaussian.mean == pytest.approx(scale)
    assert gaussian.variance == pytest.approx(depth * scale**2)
    # the end of the Fuss-Catalan law
    assert gaussian.largest == pytest.approx(
        scale * (depth + 1) ** (depth + 1) / depth**depth, rel=1e-6
    )
    orthogonal = finite_width.jacobian_spectrum(MeanField("linear", 0.5, 0.1), depth, "orthogonal")
    assert orthogonal.variance == pytest.approx(0, abs=1e-12)
    assert orthogonal.largest == pytest.approx(scale, rel=1e-6)


@pytest.mark.parametrize("depth", [8, 30])
@pytest.mark.parametrize("weights", ["gaussian", "orthogonal"])
@pytest.mark.parametrize("activation", ["hard-tanh", "relu"])
def test_ends_of_spectra_of_slopes_0_and_1(activation, weights, depth):
    """Slopes are 1 with the probability p: M^-1(z) is maximal at a root of a polynomial in z.

    M^-1 = z / (1 + z) ((1 + z)^(1 - s) / (w (p + z)))^L with s = 1 for Gaussian weights, else 0.
    """
    w = 1.4
    network = MeanField(activation, w, 0.1)
    p = 0.5
    if activation == "hard-tanh":
        p = erf(1 / (2 * float(network.q_star)) ** 0.5)
    if weights == "gaussian":
        z = (1 - depth + ((depth - 1) ** 2 + 4 * depth * p) ** 0.5) / (2 * depth)
        layer = 1 / (w * (p + z))
    else:
        z = p / (depth * (1 - p) - 1)
        layer = (1 + z) / (w * (p + z))
    found = finite_width.jacobian_spectrum(network, depth, weights)
    assert found.largest == pytest.approx((1 + z) / z * layer**-depth, rel=1e-9)
    assert found.mean == pytest.approx((w * p) ** depth, rel=1e-9)
    spread = 1 / p - 1 + (weights == "gaussian")
    assert found.variance == pytest.approx(found.mean**2 * depth * spread, rel=1e-9)


@pytest.mark.parametrize("weights", ["gaussian", "orthogonal"])
@pytest.mark.parametrize(("activation", "keep"), [("tanh", 1.0), ("hard-tanh", 1.0), ("tanh", 0.8)])
def test_jacobians_against_networks(weights, activation, keep):
    network = MeanField(activation, 1.5, 0.2, keep)
    depth, n = 4, 500
    theory = finite_width.jacobian_spectrum(network, depth, weights)
    rng = np.random.default_rng(1)
    J = np.eye(n)
    for _ in range(depth):
        if weights == "gaussian":
            W = rng.standard_normal((n, n)) / n**0.5
        else:
            W = np.linalg.qr(rng.standard_normal((n, n)))[0]
        z = rng.normal(0, float(network.q_star) ** 0.5, n)  # free of W, as in the limit
        mask = (rng.random(n) < keep) / keep
        J = (np.asarray(network.phi.derivative(z)) * mask)[:, None] * (1.5**0.5 * W @ J)
    values = np.linalg.svd(J, compute_uv=False) ** 2
    assert theory.mean == pytest.approx(float(network.chi1) ** depth, rel=1e-6)
    assert theory.mean == pytest.approx(values.mean(), rel=0.1)
    assert theory.variance == pytest.approx(values.var(), rel=0.25)
    assert theory.largest == pytest.approx(values.max(), rel=0.12)


def test_bad_networks_are_refused():
    with pytest.raises(InputError, match="diverge"):
        finite_width.jacobian_spectrum(MeanField("relu", 3.0, 0.1), 4)
    with pytest.raises(InputError) as caught:
        finite_width.four_point(np.exp, [8, 16], bias_var=0.5, q0=1e9)
    assert caught.value.argument == "weight_var"
    with pytest.raises(InputError, match="widths"):
        finite_width.four_point("tanh", [])
