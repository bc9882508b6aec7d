"""Digits, depth and size: single precision near the diagonal, deep chaotic networks, extremes,
memory, other libraries."""

import tracemalloc

import numpy as np
import pytest
import torch

from orderone.theory import activations
from orderone.theory.kernels import (
    Activation,
    AveragePool,
    Dense,
    Dropout,
    LayerNorm,
    Residual,
    Sequential,
    covariance,
    inputs,
    repeat,
)


def deep(phi, depth, weight_var, bias_var=0.0):
    return Sequential(
        repeat(Sequential(Dense(weight_var, bias_var), Activation(phi)), depth),
        Dense(weight_var, bias_var),
    )


@pytest.mark.parametrize(
    ("phi", "depth", "weight_var", "bias_var"),
    [
        ("relu", 50, 2.0, 0.0),
        ("relu", 50, 1.7, 0.1),
        ("erf", 50, 1.7, 0.1),
        ("erf", 100, 4.0, 0.1),
        ("gelu", 50, 2.0, 0.0),
    ],
)
def test_single_precision_diagonals_are_right(phi, depth, weight_var, bias_var):
    X = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    net = deep(phi, depth, weight_var, bias_var)
    single, double = net(inputs(X)), net(inputs(X.astype(float)))
    assert single.ntk.dtype == single.nngp.dtype == np.float32
    assert single.ntk.diagonal() == pytest.approx(double.ntk.diagonal(), rel=1e-6)
    assert single.nngp.diagonal() == pytest.approx(double.nngp.diagonal(), rel=1e-6)


def test_equal_inputs_have_equal_kernels_in_single_precision():
    """With correlations instead of gaps, sqrt(1 - c^2) would cost the NTK of ReLU a
    percent."""
    x = np.random.default_rng(0).normal(size=(1, 8)).astype(np.float32)
    k = deep("relu", 50, 2.0)(inputs(np.repeat(x, 2, 0)))
    assert k.ntk[0, 1] == pytest.approx(k.ntk[0, 0], rel=1e-5)
    K, theta = np.float32(1), np.float32(1)
    for _ in range(50):
        K = np.nextafter(K, np.float32(0))  # one rounding
        angle = np.arccos(K)
        K = (np.sqrt(1 - K**2) + (np.pi - angle) * K) / np.float32(np.pi)
        theta = theta * (1 - angle / np.float32(np.pi)) + K
    assert abs(theta - 51) > 0.005 * 51


def test_off_diagonals_of_single_precision():
    X = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    for phi in ("relu", "erf"):
        single, double = (
            deep(phi, 50, 1.7, 0.1)(inputs(X.astype(kind))) for kind in (np.float32, float)
        )
        assert single.ntk == pytest.approx(double.ntk, rel=2e-4)


def test_deep_chaotic_networks_do_not_drift():
    """The diagonal obeys its own recursion at any depth, and pairs settle at the stable
    correlation, not at 1."""
    X, phi = np.random.default_rng(0).normal(size=(20, 8)), activations.get("erf")
    k, deeper = (deep("erf", depth, 4.0, 0.1)(inputs(X)) for depth in (200, 210))
    q = 1.0
    for _ in range(300):
        q = 4.0 * phi.second_moment(q) + 0.1
    assert k.variance == pytest.approx(q, rel=1e-12)
    chi1 = 4.0 * phi.derivative_moment(q)
    assert deeper.ntk.diagonal() / k.ntk.diagonal() == pytest.approx(chi1**10, rel=1e-12)
    apart = k.gap[~np.eye(20, dtype=bool)]
    assert np.ptp(apart) < 1e-12
    assert phi.output_gap(q, q, apart[0]) * (4.0 * phi.second_moment(q) / q) == pytest.approx(
        apart[0], rel=1e-10
    )
    assert apart[0] > 0.1


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_nearly_equal_inputs_separate_at_the_rate_chi1(kind):
    """A gap of 1e-12, of which single precision would see nothing in a correlation."""
    x = np.random.default_rng(0).normal(size=8)
    y = x + 1e-6 * np.array([1, -1, 0, 0, 0, 0, 0, 0]) * np.linalg.norm(x)
    y *= np.linalg.norm(x) / np.linalg.norm(y)
    start = inputs(np.array([x, y]))
    assert start.gap[0, 1] == pytest.approx(np.sum((x - y) ** 2) / np.sum(x**2) / 2, rel=1e-6)
    phi, net = activations.get("erf"), repeat(Sequential(Dense(4.0, 0.1), Activation("erf")), 30)
    settled = net(start.astype(kind))
    more = Sequential(Dense(4.0, 0.1), Activation("erf"), Dense(4.0, 0.1))(settled)
    before = Dense(4.0, 0.1)(settled)
    chi1 = 4.0 * phi.derivative_moment(before.variance[0])
    assert before.gap[0, 1] < 1e-3
    assert more.gap[0, 1] / before.gap[0, 1] == pytest.approx(chi1, rel=2e-3)


def test_extremes_give_no_nan_and_no_warning():
    X = np.array([[1.0, 2], [-1, -2], [2, 4], [0, 0], [1e-150, 0], [1e150, 1]])
    for net in (
        deep("relu", 200, 1e6),
        deep("erf", 40, 1e9),
        deep("erf", 40, 1e-9),
        deep("gelu", 3, 1e3, 1e-9),
    ):
        for kind in (np.float32, np.float64):
            k = net(inputs(X[:5] if kind is np.float32 else X).astype(kind))
            assert not np.isnan(k.nngp).any(), (net, kind)
            assert not np.isnan(k.ntk).any(), (net, kind)
    assert np.isinf(deep("relu", 200, 1e6)(inputs(X)).ntk[0, 0])
    silent = Sequential(Dense(0.0), Activation("relu"), Dense(1.0, 0.5))(inputs(X))
    assert silent.nngp == pytest.approx(0.5)
    constant = Sequential(LayerNorm(1e-5), Dense(1.0, 0.5))(inputs([[1.0, 1.0], [1.0, 2.0]]))
    assert constant.nngp == pytest.approx(np.array([[0.5, 0.5], [0.5, 1.5]]), abs=1e-4)


def test_opposite_inputs_stay_opposite_without_biases():
    k = deep("erf", 20, 3.0)(inputs([[1.0, 2], [-1, -2]]))
    assert k.nngp[0, 1] == pytest.approx(-k.nngp[0, 0], rel=1e-12)
    assert k.ntk[0, 1] == pytest.approx(-k.ntk[0, 0], rel=1e-10)


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("device", ["cpu", *["cuda"] * torch.cuda.is_available()])
def test_tensors_in_tensors_out(kind, device):
    X = np.random.default_rng(0).normal(size=(7, 3, 5)).astype(kind)
    net = Sequential(
        *(
            Dense(1.5, 0.1),
            Activation("relu"),
            LayerNorm(1e-5),
            Dropout(0.8),
            Dense(2.0),
            Activation("erf"),
        ),
        *(
            Dense(1.0, 0.2),
            Residual(Activation("relu"), Dense(1.0), scale=0.5),
            AveragePool(),
            Dense(),
        ),
    )
    ours, theirs = net(inputs(X)), net(inputs(torch.from_numpy(X).to(device)))
    assert isinstance(theirs.ntk, torch.Tensor)
    assert theirs.ntk.dtype == getattr(torch, kind)
    assert theirs.ntk.device.type == device
    assert theirs.nngp.cpu().numpy() == pytest.approx(
        ours.nngp, rel=2e-5 if kind == "float32" else 1e-12
    )
    assert theirs.ntk.cpu().numpy() == pytest.approx(
        ours.ntk, rel=2e-5 if kind == "float32" else 1e-12
    )
    K = covariance(torch.tensor([[2.0, 0.5], [0.5, 1.0]]))
    assert isinstance(Activation("relu")(K).nngp, torch.Tensor)


@pytest.mark.parametrize(
    ("points", "kind", "limit"), [(512, np.float64, 100e6), (4096, np.float32, 1.5e9)]
)
def test_memory_is_that_of_a_few_matrices(points, kind, limit):
    X, net = (
        np.random.default_rng(0).normal(size=(points, 16)).astype(kind),
        deep("relu", 1, 2.0, 0.1),
    )
    tracemalloc.start()
    try:
        k = net(inputs(X))
        assert k.nngp.shape == k.ntk.shape
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < min(limit, 8.5 * points**2 * np.dtype(kind).itemsize + 10e6)
