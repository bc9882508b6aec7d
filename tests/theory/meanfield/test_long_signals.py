"""Signals that are very long, or grow until they overflow: no NaN, no warning, the right correlations."""

import numpy as np
import pytest

from orderone.theory import MeanField, activations, critical_weight_var

CUBE = lambda x: x**3  # noqa: E731


@pytest.mark.parametrize(
    ("network", "depth"),
    [
        (("relu", 3.0, 0.1, 0.9), 3000),
        (("linear", 1.5, 0.1, 0.9), 3000),
        (("gelu", 3.0, 0.1, 0.9), 3000),
        ((CUBE, 3.0, 0.1, 0.9), 60),
        ((np.exp, 1.0, 0.1, 0.9), 6),
    ],
)
def test_correlations_settle_although_lengths_overflow(network, depth):
    field = MeanField(*network)
    path = field.trajectory(1.0, 0.3, depth)
    assert path.q[-1] == np.inf
    assert path.c[-1] == pytest.approx(field.c_star, abs=1e-12)


def test_long_inputs_are_reported_as_they_were_given():
    path = MeanField("tanh", 1.4, 0.1, 0.9).trajectory(1e300, 0.5, 2)
    assert path.q[0] == 1e300
    assert path.q[1] == pytest.approx(1.4 / 0.9 + 0.1)
    assert path.c[1] == pytest.approx((1.4 * 2 / np.pi * np.arcsin(0.5) + 0.1) / (1.4 / 0.9 + 0.1))


@pytest.mark.parametrize("name", activations.names())
@pytest.mark.parametrize("q", [1e20, 1e155, 1e308])
def test_averages_at_huge_lengths_are_numbers(name, q):
    phi = activations.get(name)
    assert 0 <= phi.output_gap(q, q, 0.3) <= 2
    assert phi.derivative_pair(q, q, 0.3) >= 0
    assert not np.isnan(phi.pair(q, q, 0.3))
    assert MeanField(name, 1.4, 0.1).length_map(q) > 0


@pytest.mark.parametrize("name", ["tanh", "hard-tanh", "erf"])
def test_bounded_activations_become_signs(name):
    assert activations.get(name).output_gap(1e30, 1e30, 0.3) == pytest.approx(1 - 2 / np.pi * np.arcsin(0.7), rel=1e-12)


@pytest.mark.parametrize("name", ["gelu", "silu", "softplus"])
def test_activations_that_grow_on_one_side_become_relu(name):
    exact = activations.get("relu").output_gap(1.0, 1.0, 0.3)
    assert activations.get(name).output_gap(1e40, 1e40, 0.3) == pytest.approx(exact, rel=1e-12)


def test_hard_tanh_keeps_its_digits_at_large_lengths():
    q = np.array([1e6, 1e8, 1e10])
    beyond = 1 - 2 / np.pi * np.arcsin(0.7) - activations.get("hard-tanh").output_gap(q, q, 0.3)
    assert beyond[:-1] / beyond[1:] == pytest.approx(10, rel=1e-2)  # the next term of large lengths is 1 / sqrt(q)


@pytest.mark.parametrize(
    "network",
    [("relu", 3.0, 0.1, 0.9), ("leaky-relu(0.2)", 2.5, 0.0, 0.8), ("gelu", 3.0, 0.1, 0.9), (CUBE, 3.0, 0.1, 0.9)],
)
def test_depth_scales_of_diverging_lengths_are_those_of_normalised_signals(network):
    field, step = MeanField(*network), 1e-5
    slope = (field.correlation_map(field.c_star + step) - field.correlation_map(field.c_star - step)) / (2 * step)
    assert field.status == "diverges"
    assert field.xi2 == pytest.approx(1 / abs(np.log(slope)), rel=1e-6)


def test_without_dropout_diverging_relu_signals_align_slower_than_exponentially():
    assert MeanField("relu", 3.0, 0.0).xi2 == np.inf


@pytest.mark.parametrize(("name", "slope"), [("tanh", 4 / 3), ("erf", 2 * np.sqrt(2 / np.pi)), ("hard-tanh", 2.0)])
@pytest.mark.parametrize("weight_var", [1e20, 1e80])
def test_bounded_activations_have_a_length_however_large(name, slope, weight_var):
    field = MeanField(name, weight_var, 0.1)
    assert field.q_star == pytest.approx(weight_var, rel=1e-9)
    assert field.chi1 == pytest.approx(
        np.sqrt(weight_var / (2 * np.pi)) * slope, rel=1e-8
    )  # slope: of phi'^2 the integral
    assert field.c_star == pytest.approx(0, abs=1e-9)
    assert field.chi2 == pytest.approx(2 / np.pi, rel=1e-8)
    assert (field.status, field.phase) == ("converged", "chaotic")


def test_lengths_below_and_beyond_the_grid_are_listed():
    for network in (("tanh", 0.5, 1e-20), ("tanh", 1e20, 0.1)):
        field = MeanField(*network)
        assert field.q_star in [pytest.approx(point.value) for point in field.lengths()]
    assert MeanField("tanh", 0.5, 1e-20).q_star == pytest.approx(2e-20)


def test_large_biases_and_small_keep_rates():
    assert MeanField("tanh", 1.0, 1e300).q_star == pytest.approx(1e300)
    assert MeanField("tanh", 1.0, 0.1, 1e-80).q_star == pytest.approx(1e80)
    assert critical_weight_var("tanh", 1e300) == pytest.approx(np.sqrt(2 * np.pi * 1e300) * 3 / 4, rel=1e-9)
