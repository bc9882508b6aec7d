"""Fixed points, their stability, and convergence of the iterated maps."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import lambertw

from orderone import theory
from orderone.theory import MeanField

NAMES = [name for name in theory.activations.names() if name != "polynomial"]
SMOOTH = ["tanh", "erf", "sin", "sigmoid", "gelu", "silu"]


@given(
    st.sampled_from(NAMES),
    st.floats(0.05, 6),
    st.floats(1e-3, 2),
    st.sampled_from([1.0, 0.95, 0.6]),
)
@settings(max_examples=60, deadline=None)
def test_the_maps_leave_the_fixed_points_alone(name, weight_var, bias_var, keep):
    network = MeanField(name, weight_var, bias_var, keep)
    if network.status == "converged":
        assert network.length_map(network.q_star) == pytest.approx(network.q_star, rel=1e-12)
        assert network.correlation_map(network.c_star) == pytest.approx(network.c_star, abs=1e-12)
        assert 0 <= network.c_star <= 1
        assert network.chi2 <= 1 + 1e-12  # c* attracts
        assert network.chi2 <= network.chi1 + 1e-12
    else:
        assert network.q_star == math.inf
        assert np.isfinite([network.c_star, network.xi1]).all() or network.phase == "critical"
        assert (
            np.isfinite(network.xi2) or keep == 1
        )  # long signals of straight lines: c = 1 attracts slowly, or not


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("keep", [1.0, 0.9])
def test_iterating_the_maps_leads_there(name, keep):
    network = MeanField(name, 1.3, 0.2, keep)
    path = network.trajectory(2.0, 0.3, 400)
    assert path.q[-1] == pytest.approx(network.q_star, rel=1e-9)
    assert path.c[-1] == pytest.approx(network.c_star, abs=1e-8)
    q, c = path
    assert (len(q), q[0], c[0]) == pytest.approx((401, 2.0, 0.3))
    assert path.q_ab == pytest.approx(c * q)


def test_the_approach_is_exponential_with_xi2():
    """S1 (6): chi_2 is the ratio of successive differences from c*."""
    network = MeanField("tanh", 2.5, 0.05)
    c = network.trajectory(network.q_star, 0.6, 120).c
    ratios = np.diff(c)[101:] / np.diff(c)[100:-1]
    assert ratios == pytest.approx(np.full(len(ratios), network.chi2), rel=1e-3)
    assert network.xi2 == pytest.approx(-1 / math.log(network.chi2))


def test_lengths_that_differ_become_equal():
    network = MeanField("tanh", 1.4, 0.1, 0.9)
    path = network.trajectory((0.2, 5.0), -0.5, 200)
    assert path.q_bb[-1] == pytest.approx(path.q[-1])
    assert path.c[-1] == pytest.approx(network.c_star, abs=1e-10)
    with np.errstate(all="raise"):
        first = network.trajectory((0.2, 5.0), -0.5, 1)
    pair = network.phi.pair(0.2, 5.0, 1.5)
    expected = (1.4 * pair + 0.1) / math.sqrt(network.length_map(0.2) * network.length_map(5.0))
    assert first.c[1] == pytest.approx(expected, abs=1e-14)


def test_a_tiny_gap_is_followed_through_many_layers():
    """In the ordered phase the gap shrinks by chi_1 a layer, far below what 1 - c could show."""
    network = MeanField("tanh", 1.0, 0.1)
    gap = network.trajectory(network.q_star, 1 - 1e-6, 100).gap
    assert gap[-1] / gap[-2] == pytest.approx(network.chi1, rel=1e-9)
    assert gap[-1] < 1e-20


def test_correlation_without_dropout_is_not_always_one():
    """Erratum S1.1, and the setting of Figure 3c in particular."""
    assert MeanField("hard-tanh", 1.4, 0.1).c_star == pytest.approx(0.9208365139, abs=1e-9)
    assert MeanField("tanh", 2.5, 0.05).c_star == pytest.approx(0.4468042323, abs=1e-9)
    assert MeanField("tanh", 1.0, 0.05).c_star == 1


@pytest.mark.parametrize(
    ("name", "edge"), [("linear", 1.0), ("relu", 2.0), ("leaky-relu(0.5)", 1.6), ("abs", 1.0)]
)
@pytest.mark.parametrize("keep", [1.0, 0.7])
def test_when_lengths_exist(name, edge, keep):
    """Erratum S1.2."""
    below, above = (
        MeanField(name, 0.999 * edge * keep, 0.1, keep),
        MeanField(name, 1.001 * edge * keep, 0.1, keep),
    )
    assert below.q_star == pytest.approx(0.1 / 0.001, rel=1e-9)
    assert (above.q_star, above.status) == (math.inf, "diverges")
    assert above.chi1 == pytest.approx(1.001)
    assert above.lengths() == above.correlations() == ()


@pytest.mark.parametrize("name", ["elu", "softplus"])
def test_lengths_that_grow_by_a_constant_diverge(name):
    """At weight_var = 2, q' - q tends to a constant, which rounding hides from 1e15 on."""
    assert MeanField(name, 2.0, 0.1).status == "diverges"
    assert MeanField(name, 1.9, 0.1).status == "converged"


@pytest.mark.parametrize("name", ["tanh", "erf", "hard-tanh", "sin", "sigmoid", "step"])
def test_bounded_activations_always_have_one(name):
    for weight_var in (1e-6, 1.0, 1e6):
        assert MeanField(name, weight_var, 0.1, 0.3).status == "converged"


def test_all_fixed_points_and_their_stability():
    chaotic = MeanField("tanh", 2.5, 0.05).correlations()
    assert [(round(p.value, 6), p.stability) for p in chaotic] == [
        (1.0, "unstable"),
        (0.446804, "stable"),
    ]
    odd = MeanField("tanh", 1.5, 0.0)
    assert [(p.value, p.stability) for p in odd.correlations()] == [
        (1.0, "unstable"),
        (0.0, "stable"),
        (-1.0, "unstable"),
    ]
    assert [p.stability for p in odd.lengths()] == ["unstable", "stable"]
    assert [p.stability for p in MeanField("relu", 2.0, 0.0).correlations()] == ["marginal"]
    [only] = MeanField("tanh", 2.5, 0.05, 0.9).correlations()
    assert only.stability == "stable"
    cubic = MeanField(lambda x: x**3, 0.1, 0.1)
    assert [p.stability for p in cubic.lengths()] == ["stable", "unstable"]
    assert cubic.status == "diverges"  # from length one; a signal shorter than .76 would settle


def test_no_fixed_point_is_overlooked():
    """The solver relies on convexity, which holds on a fine grid."""
    c = np.linspace(-1, 1, 4000)
    for name, weight_var, bias_var, keep in (
        ("tanh", 2.5, 0.05, 1.0),
        ("tanh", 1.5, 0.0, 1.0),
        ("gelu", 1.3, 0.5, 0.8),
        ("selu", 1.0, 0.1, 1.0),
    ):
        network = MeanField(name, weight_var, bias_var, keep)
        moved = network.correlation_map(c) - c
        crossings = np.sum(np.sign(moved[1:-2]) * np.sign(moved[2:-1]) < 0) + np.sum(
            np.abs(moved[[0, -1]]) < 1e-12
        )
        assert crossings == len(network.correlations())


def test_signals_that_vanish():
    """Without bias q* = 0, and the correlation is the limit of small biases."""
    for keep in (1.0, 0.9):
        dead, small = MeanField("tanh", 0.8, 0.0, keep), MeanField("tanh", 0.8, 1e-9, keep)
        assert dead.q_star == 0
        assert dead.c_star == pytest.approx(small.c_star, abs=1e-7)
        assert (dead.chi1, dead.chi2) == pytest.approx((0.8 / keep, 0.8), rel=1e-12)
    assert MeanField("linear", 0.5, 0.0, 0.9).c_star == pytest.approx(
        (1 - 0.5 / 0.9) / (1 - 0.5), abs=1e-12
    )


def test_edge_cases():
    critical = MeanField("relu", 2.0, 0.0)
    assert (critical.q_star, critical.c_star, critical.chi1, critical.xi1) == (
        1.0,
        1.0,
        1.0,
        math.inf,
    )
    silent = MeanField("tanh", 0.0, 0.3)
    assert (silent.q_star, silent.c_star, silent.chi1, silent.xi1, silent.phase) == (
        0.3,
        1.0,
        0.0,
        0.0,
        "ordered",
    )
    nothing = MeanField("tanh", 0.0, 0.0, 0.5)
    assert (nothing.q_star, nothing.c_star, nothing.status) == (0.0, 1.0, "converged")
    step = MeanField("step", 1.0, 0.1)
    assert (step.chi1, step.xi1, step.phase) == (math.inf, 0.0, "chaotic")
    assert MeanField("selu", 1.0, 0.0).q_star == pytest.approx(
        1, abs=1e-12
    )  # as its authors made it
    for extreme in (
        MeanField("tanh", 1e12, 1e-12),
        MeanField("tanh", 1e-12, 1e12),
        MeanField("gelu", 1e-9, 1e-9, 1e-3),
    ):
        assert np.isfinite([extreme.q_star, extreme.c_star, extreme.chi1, extreme.chi2]).all()
    exploding = MeanField(np.exp, 1.0, 0.1)
    assert (exploding.q_star, exploding.chi1, exploding.status) == (math.inf, math.inf, "diverges")
    assert MeanField("relu", 4.0, 0.1).trajectory(1.0, 0.3, 1100).q[-1] == math.inf


@pytest.mark.parametrize(
    "f", [lambda x: np.where(np.abs(x) < 1, 3.0, 0.0), lambda x: 6 * x * np.exp(-x * x), np.sinc]
)
def test_lengths_never_oscillate(f):
    """d log q' / d log q >= -1/2 for every function, however steeply it falls."""
    phi, q = theory.activations.get(f), np.geomspace(1e-4, 1e6, 200)
    scaled = np.sqrt(q) * phi.second_moment(q)
    assert (np.diff(scaled) > -1e-12 * scaled[1:]).all()
    for weight_var in (1.0, 300.0):
        network, length = MeanField(f, weight_var, 0.01), 1.0
        for _ in range(60):
            length = network.length_map(length)
        assert length == pytest.approx(network.q_star, rel=1e-9)


def test_correlation_of_diverging_networks_is_that_of_long_signals():
    relu = MeanField("relu", 2.5, 0.1, 0.9)
    path = relu.trajectory(1.0, 0.2, 300)
    assert relu.c_star == pytest.approx(path.c[-1], abs=1e-9)
    for kin in ("gelu", "silu"):  # like ReLU from afar
        assert MeanField(kin, 2.5, 0.1, 0.9).c_star == pytest.approx(relu.c_star, abs=1e-9)
        assert MeanField(kin, 2.5, 0.1, 0.9).chi1 == pytest.approx(relu.chi1, abs=1e-9)


def test_arrays_equal_numbers():
    weight_var, keep = np.array([[0.8], [1.7], [3.0]]), np.array([1.0, 0.8])
    many = MeanField("tanh", weight_var, 0.1, keep)
    for i, j in np.ndindex(3, 2):
        one = MeanField("tanh", float(weight_var[i, 0]), 0.1, float(keep[j]))
        for name in ("q_star", "c_star", "gap_star", "chi1", "chi2", "xi1", "xi2"):
            assert getattr(many, name)[i, j] == pytest.approx(
                getattr(one, name), rel=1e-11, abs=1e-14
            )
            assert isinstance(getattr(one, name), float)
        assert (many.phase[i, j], many.status[i, j]) == (one.phase, one.status)
        assert many.trainable_depth()[i, j] == pytest.approx(one.trainable_depth())
    assert many.trajectory(1.0, 0.5, 4).c.shape == (5, 3, 2)


def test_tensors_come_back_as_tensors():
    q = MeanField("tanh", torch.tensor([1.2, 2.2]), 0.1).q_star
    assert isinstance(q, torch.Tensor)
    assert q.dtype == torch.float32


def test_trainable_depth():
    network = MeanField(
        "tanh", 1.74334509321071, 0.05, 0.99
    )  # on the critical line: xi_1 is infinite, xi_2 decides
    assert network.trainable_depth() == pytest.approx(12 * 14.433526067901129)
    assert network.trainable_depth(older=True) == pytest.approx(6 * 14.433526067901129)


@pytest.mark.slow
def test_the_trajectory_agrees_with_a_wide_network():
    """Lengths and correlations of one network of width 3000, layer by layer."""
    rng, n, (w, b, keep) = np.random.default_rng(0), 3000, (1.76, 0.05, 0.9)
    network = MeanField("tanh", w, b, keep)
    z = rng.multivariate_normal([0, 0], [[1, 0.3], [0.3, 1]], size=n).T
    path = network.trajectory(1.0, 0.3, 12)
    for layer in range(1, 13):
        masks = rng.random((2, n)) < keep
        W, bias = rng.normal(0, (w / n) ** 0.5, (n, n)), rng.normal(0, b**0.5, n)
        z = (masks * np.tanh(z) / keep) @ W.T + bias
        q_aa, q_ab = (z[0] ** 2).mean(), (z[0] * z[1]).mean()
        assert q_aa == pytest.approx(path.q[layer], rel=0.12)
        assert q_ab / q_aa == pytest.approx(path.c[layer], abs=0.08)


@pytest.mark.parametrize("distance", [1e-7, 1e-3, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("weight_var", [1e-3, 0.02, 0.3, 7.0])
def test_close_pairs_of_a_square(weight_var, distance):
    """q' = 3 weight_var q^2 + bias_var; no point of the grid lies between the closest pairs."""
    bias_var = (1 - distance) / (12 * weight_var)
    root = math.sqrt(1 - 12 * weight_var * bias_var)
    low = (1 - root) / (6 * weight_var)
    high = (1 + root) / (6 * weight_var)
    network = MeanField(np.square, weight_var, bias_var)
    accuracy = 1e-9 / root
    assert network.q_star == pytest.approx(low if high > 1 else math.inf, rel=accuracy)
    lengths = network.lengths()
    assert [point.value for point in lengths] == pytest.approx([low, high], rel=accuracy)
    assert [point.stability for point in lengths] == ["stable", "unstable"]


@pytest.mark.parametrize("length", [2.0, 10.9, 60.0, 150.0])
@pytest.mark.parametrize("slope", [0.2, 0.8, 0.999])
def test_close_pairs_of_exp(length, slope):
    """q' = weight_var exp(2 q) + bias_var, solved with Lambert's W."""
    weight_var = slope / 2 * math.exp(-2 * length)
    bias_var = length - slope / 2
    low, high = (
        bias_var - float(lambertw(-2 * weight_var * math.exp(2 * bias_var), branch).real) / 2
        for branch in (0, -1)
    )
    network = MeanField(np.exp, weight_var, bias_var)
    assert network.q_star == pytest.approx(low, rel=1e-8)
    assert network.chi1 == pytest.approx(slope / 2, rel=1e-6)
    lengths = [point.value for point in network.lengths()]
    assert lengths == pytest.approx([low, high], rel=1e-8)


def test_lengths_that_just_miss_the_diagonal_diverge():
    assert MeanField(np.square, 0.02, 1.001 / 0.24).status == "diverges"
    assert MeanField(np.square, 0.02, 1.001 / 0.24).lengths() == ()
