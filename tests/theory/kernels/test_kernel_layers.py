"""Every layer against closed forms and quadrature, and against what must hold of any kernel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderone.theory import kernels
from orderone.theory.kernels import (
    Activation,
    AveragePool,
    Dense,
    Dropout,
    LayerNorm,
    Residual,
    RMSNorm,
    Sequential,
    covariance,
    inputs,
    repeat,
)

X = np.array([[1.0, 2, -1, 0.5], [0.3, -1, 2, 1], [1.1, 1.9, -1, 0.4], [-1, -2, 1, -0.5]])
TOKENS = np.stack([X, X[::-1] * 0.7 + 0.2, X**2 - 1])

# --- closed forms and quadrature, layer by layer --------------------------------------------------


def hidden(phi):
    """E[phi phi] and E[phi' phi'] of X behind Dense(1.5, 0.2), as kernels have them, and the
    covariance they start from."""
    K = 1.5 * X @ X.T / 4 + 0.2
    k = Sequential(Dense(1.5, 0.2), Activation(phi))(inputs(X))
    return K, k.nngp, k.ntk / K  # behind one Dense layer, Theta = K


def quadrature(f, g, K, order=170):
    """E[f(x) g(y)] for two of the points, by Gauss and Hermite in two dimensions."""
    z, w = np.polynomial.hermite_e.hermegauss(order)
    (root, zero), (along, across) = np.linalg.cholesky(K + 1e-15 * np.eye(2))
    assert zero == 0
    x, y = root * z[:, None], along * z[:, None] + across * z[None, :]
    return float(np.einsum("i,j,ij->", w, w, f(x) * g(y)) / (2 * np.pi))


SMOOTH = {
    "erf": (np.vectorize(__import__("math").erf), lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x)),
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
    "sin": (np.sin, np.cos),
    "linear": (lambda x: x, np.ones_like),
}


@pytest.mark.parametrize("phi", SMOOTH)
def test_activations_agree_with_quadrature(phi):
    value, slope = SMOOTH[phi]
    K, nngp, dual = hidden(phi)
    for a, b in ((0, 1), (0, 2), (1, 3)):
        two = K[np.ix_([a, b], [a, b])]
        assert nngp[a, b] == pytest.approx(quadrature(value, value, two), rel=2e-6)
        assert dual[a, b] == pytest.approx(quadrature(slope, slope, two), rel=2e-6)


def test_relu_agrees_with_arc_cosines():
    K, nngp, dual = hidden("relu")
    size = np.sqrt(np.outer(K.diagonal(), K.diagonal()))
    theta = np.arccos(np.clip(K / size, -1, 1))
    assert nngp == pytest.approx(
        size / (2 * np.pi) * (np.sin(theta) + (np.pi - theta) * np.cos(theta)), abs=1e-8
    )
    assert dual == pytest.approx(
        (np.pi - theta) / (2 * np.pi), abs=1e-8
    )  # 1 - c of 1e-16 is 1e-8 of theta


def test_a_deep_linear_network_gains_one_kernel_a_layer():
    K = X @ X.T / 4
    k = repeat(Dense(1.3), 7)(inputs(X))
    assert k.nngp == pytest.approx(1.3**7 * K, rel=1e-12)
    assert k.ntk == pytest.approx(7 * 1.3**7 * K, rel=1e-12)


def test_dropout_grows_the_diagonal_only():
    """S1 (2)-(3), with two equal inputs: they never share a mask."""
    twice = np.concatenate([X, X[:1]])
    layer = Sequential(Dense(1.4, 0.1), Activation("tanh"), Dropout(0.6), Dense(2.0, 0.3))
    plain = Sequential(Dense(1.4, 0.1), Activation("tanh"), Dense(2.0, 0.3))
    k, without = layer(inputs(twice)), plain(inputs(twice))
    rest = ~np.eye(5, dtype=bool)
    assert k.nngp[rest] == pytest.approx(without.nngp[rest], rel=1e-12)
    assert k.ntk[rest] == pytest.approx(without.ntk[rest], rel=1e-12)
    assert k.variance == pytest.approx((without.variance - 0.3) / 0.6 + 0.3)
    assert k.nngp[0, 4] < k.nngp[0, 0] == k.nngp[4, 4]
    assert without.nngp[0, 4] == pytest.approx(without.nngp[0, 0])


def test_layer_norm_takes_out_the_mean():
    hidden = Sequential(Dense(1.5, 0.2), Activation("relu"))(inputs(X))
    mean = hidden.points.mean
    centred = hidden.nngp - np.outer(mean, mean)
    size = np.sqrt(centred.diagonal() + 0.1)
    normal = LayerNorm(0.1)(hidden)
    assert mean == pytest.approx(np.sqrt((1.5 * (X**2).mean(1) + 0.2) / (2 * np.pi)))
    assert normal.nngp == pytest.approx(centred / np.outer(size, size), abs=1e-13)
    assert normal.ntk == pytest.approx(hidden.ntk / np.outer(size, size), rel=1e-12)
    assert RMSNorm(0.1)(hidden).nngp != pytest.approx(normal.nngp, rel=0.1)


def test_layer_norm_of_inputs_is_that_of_their_features():
    standard = (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-3)
    assert LayerNorm(1e-3)(inputs(X)).nngp == pytest.approx(inputs(standard).nngp, abs=1e-13)


def test_eps_is_inside_the_root():
    """Erratum S2.1: G / (G + eps), which a network of 4096 neurons has as .6155, and not G / (sqrt
    G + eps)^2 = .411."""
    for norm in (LayerNorm(0.5), RMSNorm(0.5)):
        assert norm(covariance([[0.8]])).nngp[0, 0] == pytest.approx(0.8 / 1.3)


def test_residual_blocks_add_kernels():
    start = Dense(2, 0.1)(inputs(X))
    branch = Sequential(Activation("relu"), Dense(1.5, 0.2))
    both, alone = Residual(branch, scale=-0.7)(start), branch(start)
    assert both.nngp == pytest.approx(start.nngp + 0.49 * alone.nngp, rel=1e-12)
    assert both.ntk == pytest.approx(start.ntk + 0.49 * alone.ntk, rel=1e-12)
    nothing = Residual(branch, scale=0)(start)
    assert nothing.nngp == pytest.approx(start.nngp, rel=1e-14)
    assert nothing.ntk == pytest.approx(start.ntk, rel=1e-14)


def test_scaled_residual_networks_follow_their_differential_equation():
    """S3 (2.13) at t = 1 from correlation 0.3: reference values 1.64872 and 0.63137, up to the
    order 1 / depth."""

    def at(depth):
        block = Residual(Activation("relu"), Dense(1.0), scale=depth**-0.5)
        return repeat(block, depth)(covariance([[1, 0.3], [0.3, 1]])).nngp

    limit = 2 * at(100) - at(50)
    assert limit == pytest.approx(np.array([[1.64872, 0.63137], [0.63137, 1.64872]]), rel=1e-4)
    assert at(100) != pytest.approx(limit, rel=3e-4)


def test_pooling_is_the_mean_over_tokens():
    net = Sequential(Dense(2, 0.1), Activation("relu"))
    whole, pooled = net(inputs(TOKENS)), AveragePool()(net(inputs(TOKENS)))
    assert whole.nngp.shape == (3, 4, 3, 4)
    assert pooled.nngp == pytest.approx(whole.nngp.mean((1, 3)), rel=1e-13)
    assert pooled.ntk == pytest.approx(whole.ntk.mean((1, 3)), rel=1e-13)
    assert AveragePool()(Dense(2)(inputs(TOKENS))).nngp == pytest.approx(
        Dense(2)(AveragePool()(inputs(TOKENS))).nngp, rel=1e-12
    )


def test_residual_branches_may_contain_layers_that_are_not_pointwise():
    """A branch that is not pointwise is run by itself; the sum is the same."""

    class Plain(kernels.Layer):
        def apply(self, kernel):
            return Dense(1.5, 0.2)(Activation("relu")(kernel))

        independent = True

    start = Dense(2, 0.1)(inputs(X))
    one, other = Residual(Plain())(start), Residual(Activation("relu"), Dense(1.5, 0.2))(start)
    assert one.nngp == pytest.approx(other.nngp, rel=1e-13)
    assert one.ntk == pytest.approx(other.ntk, rel=1e-13)


# --- what holds of every network ------------------------------------------------------------------

NAMES = st.sampled_from(["relu", "erf", "gelu", "sin", "leaky-relu"])
BLOCKS = st.tuples(
    st.sampled_from(["plain", "dropout", "residual", "norm"]),
    NAMES,
    st.floats(0.1, 4.0),
    st.floats(0.0, 4.0),
    st.floats(0.05, 1.0),
)


def network(first, blocks):
    """Built outside of strategies: what checks types there draws random numbers of its own."""
    layers = [Dense(*first)]
    for kind, name, weight_var, bias_var, number in blocks:
        phi, dense = Activation(name), Dense(weight_var, bias_var)
        layers += {
            "plain": [phi, dense],
            "dropout": [phi, Dropout(number), dense],
            "residual": [Residual(phi, dense, scale=4 * number - 2)],
            "norm": [LayerNorm(1e-3), phi, RMSNorm(1e-3), dense],
        }[kind]
    return Sequential(*layers)


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.floats(0.0, 4.0), st.floats(0.0, 4.0)),
    st.lists(BLOCKS, max_size=4),
    st.integers(0, 10**6),
    st.integers(1, 6),
    st.booleans(),
)
def test_kernels_are_kernels(first, blocks, seed, points, repeated):
    net, rng = network(first, blocks), np.random.default_rng(seed)
    X = rng.normal(size=(points, 3)) * rng.choice([0.1, 1, 3])
    X = np.concatenate([X, X[:1], -2 * X[:1], 0 * X[:1]]) if repeated else X
    k, order = net(inputs(X)), rng.permutation(len(X))
    for matrix, permuted in (
        (k.nngp, net(inputs(X[order])).nngp),
        (k.ntk, net(inputs(X[order])).ntk),
    ):
        scale = max(1e-300, matrix.max())
        assert np.isfinite(matrix).all()
        assert (matrix == matrix.T).all()
        assert np.linalg.eigvalsh(matrix).min() >= -1e-12 * scale * len(X)
        assert permuted == pytest.approx(matrix[np.ix_(order, order)], rel=1e-9, abs=1e-11 * scale)
    assert (np.abs(k.correlation) <= 1).all()
    step_by_step = inputs(X)
    for layer in net.layers:
        step_by_step = layer(step_by_step)
    assert step_by_step.ntk == pytest.approx(k.ntk, rel=1e-12)


def test_a_kernel_of_some_inputs_is_part_of_that_of_all():
    X = np.random.default_rng(0).normal(size=(150, 5))
    net = repeat(Sequential(Dense(1.7, 0.1), Activation("erf")), 3)
    assert net(inputs(X)).ntk[:7, :7] == pytest.approx(net(inputs(X[:7])).ntk, rel=1e-12)


def test_composition_is_associative_and_descriptions_are_values():
    a, b, c = Dense(2, 0.1), Activation("relu"), Dense(1.0)
    assert Sequential(a, b, c) == Sequential(Sequential(a, b), c) == Sequential(a, Sequential(b, c))
    assert repeat(Sequential(a, b), 2) == Sequential(a, b, a, b)
    assert hash(repeat(a, 3)) == hash(Sequential(a, a, a))
    assert repeat(a, 0)(inputs(X)).nngp == pytest.approx(X @ X.T / 4)
    assert len({Dense(2, 0.1), Dense(2.0, 0.1), Dense(2)}) == 2


def test_fixed_positions_are_correlated_with_means():
    """Sampled neurons: relu(z) + p, where p has a mean."""
    rng = np.random.default_rng(0)
    n = 400_000
    K = np.array([[1.0, 0.4], [0.4, 2.0]])
    p = rng.normal([[0.7], [-0.2]], 1.0, (2, n))
    h = np.maximum(np.linalg.cholesky(K) @ rng.standard_normal((2, n)), 0) + p
    start = kernels.covariance(K.reshape(1, 2, 1, 2))
    layer = kernels.AddPositions(p @ p.T / n, trained=False, means=p.mean(1))
    kernel = layer(kernels.Activation("relu")(start))
    np.testing.assert_allclose(kernel.nngp[0, :, 0], h @ h.T / n, atol=0.01)
    np.testing.assert_allclose(kernel.points.mean, h.mean(1), atol=0.01)
    centred = kernels.LayerNorm(0.0)(kernel).nngp[0, :, 0]
    np.testing.assert_allclose(centred, np.corrcoef(h), atol=0.01)
