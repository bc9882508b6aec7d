"""Layer norms of finite width and vertices of several inputs: closed forms and drawn networks."""

import numpy as np
import pytest

from orderone import InputError
from orderone.theory import activations, finite_width

G = np.array([[1.0, 0.6, -0.2], [0.6, 1.5, 0.1], [-0.2, 0.1, 0.8]])


@pytest.mark.parametrize(("p", "q"), [(1, 0), (0, 1), (2, 0), (1, 1), (3, 1)])
def test_moments_of_norms(p, q):
    """Against draws, and of order 1/n at least: S2 (1.51)."""
    n, networks = 6, 400_000
    z = np.random.default_rng(p + 5 * q).normal(0, 0.8**0.5, (networks, n))
    each = ((z**2).mean(1) - 0.8) ** p * (z.mean(1) ** 2) ** q
    found = finite_width.norm_moment(p, q, n, 0.8)
    assert abs(found - each.mean()) < 5 * each.std() / networks**0.5 + 1e-12
    assert abs(finite_width.norm_moment(p, q, 1000)) < 10 / 1000


def test_known_moments_of_norms():
    assert finite_width.norm_moment(0, 0, 7) == 1
    assert finite_width.norm_moment(1, 0, 7) == pytest.approx(0, abs=1e-15)
    assert finite_width.norm_moment(2, 0, 7, 3.0) == pytest.approx(9 * 2 / 7)
    assert finite_width.norm_moment(0, 1, 7, 3.0) == pytest.approx(3 / 7)


def test_normalized_variance():
    found = finite_width.normalized_variance(0.8, 0.5, 24)
    rng = np.random.default_rng(0)
    z = rng.normal(0, 0.8**0.5, (200_000, 24))
    s = (z - z.mean(1, keepdims=True)) / np.sqrt(z.var(1, keepdims=True) + 0.5)
    drawn = (s**2).mean(1)
    assert found.exact == pytest.approx(drawn.mean(), abs=5 * drawn.std() / 200_000**0.5)
    assert abs(found.limit - found.exact) > 0.02  # infinite width alone is refuted
    assert found.limit + found.correction == pytest.approx(found.exact, abs=3 * 24**-2)
    wide = finite_width.normalized_variance(0.8, 0.5, 4000)
    # what is left is of order 1/n^2
    assert abs(wide.limit + wide.correction - wide.exact) < 3 * 4000**-2
    assert finite_width.normalized_variance(2.0, 0.0, 10).exact == 1


@pytest.mark.parametrize("eps", [0.0, 0.4])
def test_normalized_covariance(eps):
    n, networks = 64, 60_000
    rng = np.random.default_rng(1)
    S = np.zeros((networks, 3, 3))
    root = np.linalg.cholesky(G)
    for first in range(0, networks, 6000):
        z = root @ rng.standard_normal((6000, 3, n))
        S[first : first + 6000] = z @ z.transpose(0, 2, 1) / n
    size = np.sqrt(np.einsum("xaa->xa", S) + eps)
    F = (S / size[:, :, None] / size[:, None, :]).reshape(networks, 9)
    drawn = np.cov(F.T).reshape(3, 3, 3, 3)
    found = finite_width.normalized_covariance(G, n, eps)
    np.testing.assert_allclose(found, drawn, atol=0.06 * drawn.max())
    if eps == 0:  # the variance of a correlation, known since Pearson
        rho = G[0, 1] / (G[0, 0] * G[1, 1]) ** 0.5
        assert found[0, 1, 0, 1] == pytest.approx((1 - rho**2) ** 2 / n)
        np.testing.assert_allclose(found[0, 0], 0, atol=1e-14)


@pytest.mark.parametrize("activation", ["linear", "relu", "tanh"])
def test_one_input_is_the_known_vertex(activation):
    single = finite_width.four_point(activation, [20, 30, 40], 1.6, 0.1, 0.9)
    found = finite_width.four_point_kernel(activation, [20, 30, 40], [[0.9]], 1.6, 0.1)
    np.testing.assert_allclose(found.covariance[:, 0, 0], single.variance, rtol=1e-6)
    np.testing.assert_allclose(found.vertex[:, 0, 0, 0, 0], single.vertex, rtol=3e-3)
    np.testing.assert_allclose(found.correction[:, 0, 0], single.correction, rtol=4e-3, atol=1e-9)


def test_linear_networks_of_several_inputs():
    """n Cov(S_ab, S_cd) = K_ac K_bd + K_ad K_bc for every layer, whose sum is the vertex."""
    found = finite_width.four_point_kernel("linear", [10, 20, 30], G)
    expected = np.einsum("ac,bd->abcd", G, G) + np.einsum("ad,bc->abcd", G, G)
    np.testing.assert_allclose(found.vertex[1], expected / 10, atol=2e-3)
    np.testing.assert_allclose(found.vertex[2], expected * (1 / 10 + 1 / 20), atol=2e-3)


def test_vertices_against_networks():
    n, networks = 48, 20_000
    theory = finite_width.four_point_kernel("tanh", [n] * 3, G, 1.8, 0.1)
    rng = np.random.default_rng(0)
    covariance = np.broadcast_to(1.8 * G + 0.1, (networks, 3, 3))
    for _ in range(2):
        z = np.linalg.cholesky(covariance) @ rng.standard_normal((networks, 3, n))
        h = np.tanh(z)
        covariance = 1.8 * h @ h.transpose(0, 2, 1) / n + 0.1
    drawn = np.cov(covariance.reshape(networks, 9).T).reshape(3, 3, 3, 3)
    np.testing.assert_allclose(theory.vertex[-1], drawn, atol=0.07 * drawn.max())


@pytest.mark.parametrize("pair", [(0, 0), (0, 1), (0, 2)])
def test_corrections_of_several_inputs_against_networks(pair):
    """Draw the second layer; the mean of the third one is known from it.

    The covariance of the second layer has the mean K, so the part of the third one that is linear
    in it averages to 0: a regression removes its noise.
    """
    n, networks = 192, 4000
    a, b = pair
    theory = finite_width.four_point_kernel("tanh", [n] * 3, G, 1.8, 0.1)
    rng = np.random.default_rng(1)
    z = np.linalg.cholesky(1.8 * G + 0.1) @ rng.standard_normal((networks, 3, n))
    h = np.tanh(z)
    drawn = 1.8 * h @ h.transpose(0, 2, 1) / n + 0.1
    left, cross, right = drawn[:, a, a], drawn[:, a, b], drawn[:, b, b]
    gap = np.clip(1 - cross / np.sqrt(left * right), 0, 2) if a != b else 0 * left
    third = 1.8 * np.asarray(activations.get("tanh").pair(left, right, gap)) + 0.1
    away = (drawn - theory.covariance[1])[:, [a, a, b], [a, b, b]]
    design = np.column_stack([np.ones(networks), away[:, : 3 if a != b else 1]])
    found, *_ = np.linalg.lstsq(design, third - theory.covariance[2][pair], rcond=None)
    noise = (third - theory.covariance[2][pair] - design @ found).std() / networks**0.5
    expected = theory.correction[2][pair]
    assert abs(found[0] - expected) < 4 * noise + 0.05 * abs(expected)
    assert abs(expected) > 6 * noise or pair == (0, 1)  # infinite width alone is refuted


def test_corrections_of_the_relu_for_two_inputs():
    """Mixed differences of the arc-cosine kernel, in its closed form."""
    rho, n = 0.3, 40
    K0 = np.array([[1.0, rho], [rho, 1.0]])
    found = finite_width.four_point_kernel("relu", [n] * 3, K0, 2.0)

    def arc_cosine(x):
        aa, ab, bb = x
        c = ab / (aa * bb) ** 0.5
        return (aa * bb) ** 0.5 * ((1 - c * c) ** 0.5 + c * (np.pi - np.arccos(c))) / np.pi

    at = found.covariance[1][[0, 0, 1], [0, 1, 1]]
    V = found.vertex[1][[0, 0, 1], [0, 1, 1]][:, [0, 0, 1], [0, 1, 1]]
    h = 1e-3
    bend = 0.0
    for i in range(3):
        for j in range(3):
            ei, ej = h * np.eye(3)[i], h * np.eye(3)[j]
            mixed = arc_cosine(at + ei + ej) - arc_cosine(at + ei - ej)
            mixed += arc_cosine(at - ei - ej) - arc_cosine(at - ei + ej)
            bend += mixed / (4 * h * h) * V[i, j] / 2
    assert found.correction[2, 0, 1] == pytest.approx(bend, rel=1e-3)
    np.testing.assert_allclose(found.correction[:, 0, 0], 0, atol=1e-9)  # homogeneous


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("widths", lambda: finite_width.four_point_kernel("tanh", [], G)),
        ("K0", lambda: finite_width.four_point_kernel("tanh", [4], np.eye(20))),
        ("weight_var", lambda: finite_width.four_point_kernel("tanh", [4, 4], np.zeros((2, 2)))),
        ("G", lambda: finite_width.normalized_covariance(np.zeros((2, 2)), 4)),
    ],
)
def test_refusals(argument, call):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
