"""Signals that are very long, or grow until they overflow: no NaN, no warning, and correlations that go where they should."""

import numpy as np
import pytest

from orderone.theory import MeanField, activations

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
