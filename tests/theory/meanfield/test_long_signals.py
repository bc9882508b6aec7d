"""Signals that are very long, or grow until they overflow: no NaN, no warning, the right
correlations."""

import numpy as np
import pytest
from support.errors import refuses

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


def test_trajectories_start_at_the_given_lengths():
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
    assert activations.get(name).output_gap(1e30, 1e30, 0.3) == pytest.approx(
        1 - 2 / np.pi * np.arcsin(0.7), rel=1e-12
    )


@pytest.mark.parametrize("name", ["gelu", "silu", "softplus"])
def test_activations_that_grow_on_one_side_become_relu(name):
    exact = activations.get("relu").output_gap(1.0, 1.0, 0.3)
    assert activations.get(name).output_gap(1e40, 1e40, 0.3) == pytest.approx(exact, rel=1e-12)


def test_hard_tanh_keeps_its_digits_at_large_lengths():
    q = np.array([1e6, 1e8, 1e10])
    beyond = 1 - 2 / np.pi * np.arcsin(0.7) - activations.get("hard-tanh").output_gap(q, q, 0.3)
    assert beyond[:-1] / beyond[1:] == pytest.approx(
        10, rel=1e-2
    )  # the next term of large lengths is 1 / sqrt(q)


@pytest.mark.parametrize(
    "network",
    [
        ("relu", 3.0, 0.1, 0.9),
        ("leaky-relu(0.2)", 2.5, 0.0, 0.8),
        ("gelu", 3.0, 0.1, 0.9),
        (CUBE, 3.0, 0.1, 0.9),
    ],
)
def test_depth_scales_of_diverging_lengths_are_those_of_normalised_signals(network):
    field, step = MeanField(*network), 1e-5
    slope = (
        field.correlation_map(field.c_star + step) - field.correlation_map(field.c_star - step)
    ) / (2 * step)
    assert field.status == "diverges"
    assert field.xi2 == pytest.approx(1 / abs(np.log(slope)), rel=1e-6)


def test_without_dropout_diverging_relu_signals_align_slower_than_exponentially():
    assert MeanField("relu", 3.0, 0.0).xi2 == np.inf


@pytest.mark.parametrize(
    ("name", "slope"), [("tanh", 4 / 3), ("erf", 2 * np.sqrt(2 / np.pi)), ("hard-tanh", 2.0)]
)
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
    assert critical_weight_var("tanh", 1e300) == pytest.approx(
        np.sqrt(2 * np.pi * 1e300) * 3 / 4, rel=1e-9
    )


# a bias of this size leaves correlations to dropout alone: q* (1 - c*) = weight_var E phi^2 (1/keep
# - 1)
FAR = 1e300


@pytest.mark.parametrize(
    ("name", "slope", "size"),
    [
        ("tanh", lambda x: np.cosh(x) ** -2.0, 1.0),
        ("sigmoid", lambda x: (2 * np.cosh(x / 2)) ** -2.0, 0.5),
    ],
)
@pytest.mark.parametrize(("weight_var", "keep"), [(1.0, 0.5), (4.0, 0.25)])
def test_signals_so_long_that_they_are_seldom_near_zero(name, slope, size, weight_var, keep):
    """Density of the mean at zero, times the overlap of slopes that are a Gaussian distance
    apart."""
    field, apart = MeanField(name, weight_var, FAR, keep), weight_var * size * (1 / keep - 1)
    assert field.gap_star * FAR == pytest.approx(apart, rel=1e-12)
    u, z = np.linspace(-60, 60, 4001), np.linspace(-9, 9, 1001)[:, None]
    distance = np.sqrt(2 * apart) * z
    overlap = (slope(u + distance / 2) * slope(u - distance / 2)).sum(-1) * (u[1] - u[0])
    mean = (overlap * np.exp(-(z[:, 0] ** 2) / 2)).sum() * (z[1, 0] - z[0, 0]) / np.sqrt(2 * np.pi)
    assert field.chi2 == pytest.approx(weight_var * mean / np.sqrt(2 * np.pi * FAR), rel=1e-9)


def test_closed_forms_hold_for_the_longest_signals():
    decay = (
        0.5  # sin: E phi' phi' = exp(-d) / 2 with d = q (1 - c) = (1/keep - 1 + 1 - exp(-d)) / 2
    )
    for _ in range(100):
        decay = (2 - np.exp(-decay)) / 2
    assert MeanField("sin", 1.0, FAR, 0.5).chi2 == pytest.approx(np.exp(-decay) / 2, rel=1e-12)
    apart = 1.0  # erf: 4 / pi / sqrt((1 + 2 q)^2 - 4 q^2 c^2) at q (1 - c) = apart
    exact = 4 / np.pi / np.sqrt(4 + 8 * apart) / np.sqrt(FAR)
    assert MeanField("erf", 1.0, FAR, 0.5).chi2 == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("name", "jump", "size"), [("tanh", 2.0, 1.0), ("sigmoid", 1.0, 0.5)])
@pytest.mark.parametrize(("weight_var", "bias_var"), [(1e250, 1e300), (1e30, 1e40), (1e290, 1e300)])
def test_long_signals_of_bounded_activations_part_like_those_of_a_jump(
    name, jump, size, weight_var, bias_var
):
    """gap = A sqrt(2 gap) jump^2 / (2 pi size) for small gaps, a map with slope 1/2 there."""
    field = MeanField(name, weight_var, bias_var)
    assert field.gap_star == pytest.approx(
        2 * (weight_var / bias_var * jump**2 / (2 * np.pi)) ** 2, rel=1e-8
    )
    assert field.chi2 == pytest.approx(0.5, rel=1e-8)
    assert field.chi1 > 1


@pytest.mark.parametrize(
    "name", ["tanh", "relu", "erf", "gelu", "hard-tanh", "linear", "sin", "step"]
)
@pytest.mark.parametrize("weight_var", [1e-18, 1e-30, 1e-300])
def test_tiny_gaps_of_weak_weights(name, weight_var):
    """So small that c* is 1 in double precision."""
    field = MeanField(name, weight_var, 0.1, 0.5)
    assert field.gap_star == pytest.approx(
        weight_var * activations.get(name).second_moment(0.1) / 0.1, rel=1e-8
    )


def test_small_keep_rates_have_their_own_gradients():
    assert MeanField("relu", 1.0, 0.1, 1e-295).chi1 == pytest.approx(5e294)


@pytest.mark.parametrize(
    "network",
    [(1e300, 0.1, 1e-10), (1e308, 0.1, 1.0), (1.0, 1e308, 1.0), ([1.0, 1e200], 0.1, 1e-200)],
)
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_variances_that_would_overflow_are_refused(name, network):
    with refuses("invalid-argument") as caught:
        MeanField(name, *network)
    assert caught.value.argument in ("weight_var / keep", "bias_var")
    assert "at most 1e+307" in str(caught.value)
