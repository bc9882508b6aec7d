"""chi_1 = 1 for each parameter, and phase diagrams over two of them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refuses

from orderone import theory
from orderone.theory import MeanField, critical_weight_var, edge_of_chaos, meanfield, phase_diagram

BENT = ["tanh", "erf", "sin", "sigmoid", "hard-tanh", "elu", "selu"]


@given(st.sampled_from(BENT), st.floats(1e-6, 3), st.floats(0.3, 1))
@settings(max_examples=40, deadline=None)
def test_the_line_is_critical(name, bias_var, keep):
    weight_var = critical_weight_var(name, bias_var=bias_var, keep=keep)
    assert MeanField(name, weight_var, bias_var, keep).chi1 == pytest.approx(1, abs=1e-12)
    assert MeanField(name, weight_var * 1.01, bias_var, keep).phase == "chaotic"
    assert MeanField(name, weight_var * 0.99, bias_var, keep).phase == "ordered"


@given(st.sampled_from(["tanh", "erf", "sin", "hard-tanh"]), st.floats(1e-3, 2), st.floats(0.5, 1))
@settings(max_examples=25, deadline=None)
def test_all_three_parameters_lead_to_the_same_line(name, bias_var, keep):
    weight_var = edge_of_chaos(name, bias_var=bias_var, keep=keep)
    assert edge_of_chaos(name, weight_var=weight_var, keep=keep) == pytest.approx(
        bias_var, rel=1e-6
    )
    assert edge_of_chaos(
        name, weight_var=weight_var, bias_var=bias_var, keep=None
    ) == pytest.approx(keep, rel=1e-12)


def test_without_bias_the_slope_at_zero_decides():
    expected = {
        "tanh": 1,
        "sin": 1,
        "hard-tanh": 1,
        "elu": 1,
        "erf": math.pi / 4,
        "relu": 2,
        "linear": 1,
    }
    assert {name: critical_weight_var(name, 0.0) for name in expected} == pytest.approx(
        expected, rel=1e-14
    )


def test_homogeneous_activations_have_a_line_that_no_bias_moves():
    assert critical_weight_var("relu", np.array([0.0, 0.1, 5.0]), 0.5) == pytest.approx(
        [1.0, 1.0, 1.0]
    )


def test_no_critical_line():
    """Softplus diverges before it is critical; GELU too unless the bias is large; a step has an
    infinite slope."""
    assert critical_weight_var("softplus", 0.1) == critical_weight_var("step", 0.1) == math.inf
    assert critical_weight_var("gelu", 0.1) == math.inf
    assert MeanField("gelu", critical_weight_var("gelu", 3.0), 3.0).chi1 == pytest.approx(
        1, abs=1e-12
    )
    for argument, parameters in (
        ("keep / weight_var", {"weight_var": 0.5}),
        ("keep", {"weight_var": 5.0, "bias_var": 0.05, "keep": None}),
    ):
        with refuses("no-critical-value", argument=argument) as caught:
            edge_of_chaos("tanh", **parameters)
        assert isinstance(caught.value, meanfield.NotCriticalError)
    with refuses("no-critical-value", argument="keep / weight_var"):
        meanfield.critical_bias_var("relu", 1.5)


def test_arrays_and_tensors():
    line = critical_weight_var("tanh", np.array([[0.01], [0.1]]), np.array([1.0, 0.9, 0.8]))
    assert line.shape == (2, 3)
    assert line[1, 2] == pytest.approx(critical_weight_var("tanh", 0.1, 0.8))
    assert isinstance(
        critical_weight_var("tanh", torch.tensor([0.05], dtype=torch.float64)), torch.Tensor
    )
    assert isinstance(critical_weight_var("tanh", 0.05), float)


@pytest.mark.parametrize(
    "parameters", [{}, {"weight_var": 1.0, "bias_var": 0.1}, {"bias_var": None, "keep": None}]
)
def test_exactly_one_parameter_must_be_none(parameters):
    with refuses("invalid-argument") as caught:
        edge_of_chaos("tanh", **parameters)
    assert "exactly one" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "keep"),
    [("tanh", 1.0), ("tanh", 0.9), ("hard-tanh", 1.0), ("relu", 0.9), ("gelu", 1.0)],
)
def test_a_diagram_equals_its_points(name, keep):
    weight_var, bias_var = np.array([0.7, 1.5, 1.9, 3.0]), np.array([0.02, 0.2])
    diagram = phase_diagram(name, weight_var=weight_var, bias_var=bias_var, keep=keep)
    assert list(diagram) == ["q_star", "c_star", "chi1", "chi2", "xi1", "xi2"]
    for i, j in np.ndindex(4, 2):
        point = MeanField(name, weight_var[i], bias_var[j], keep)
        assert {k: diagram[k][i, j] for k in diagram} == pytest.approx(
            {k: getattr(point, k) for k in diagram}, rel=1e-9
        )
        assert (diagram.phase[i, j], diagram.status[i, j]) == (point.phase, point.status)
        assert diagram.trainable_depth[i, j] == pytest.approx(point.trainable_depth(), rel=1e-9)


def test_a_diagram_across_the_line_is_right_next_to_it():
    """Within 1e-3 of the line on both sides, for all bias variances at once: against the maps
    themselves."""
    bias_var = np.linspace(0.005, 0.3, 20)
    line = critical_weight_var("tanh", bias_var)
    for distance in (-1e-3, -1e-5, 1e-5, 1e-3):
        network = MeanField("tanh", line + distance, bias_var)
        assert set(network.phase) == {"ordered" if distance < 0 else "chaotic"}
        c = network.c_star
        assert network.length_map(network.q_star) == pytest.approx(network.q_star, rel=1e-13)
        assert network.correlation_map(c) == pytest.approx(c, abs=1e-14)
        if distance > 0:  # chi_2 mirrors chi_1 at the transition: (1 - chi_2) / (chi_1 - 1) -> 1
            assert (1 - network.chi2) / (network.chi1 - 1) == pytest.approx(np.ones(20), rel=0.02)
            assert (network.gap_star > 1e-7).all()
        else:
            assert (network.gap_star == 0).all()


def test_one_value_is_an_axis_too():
    assert phase_diagram("tanh", 1.5, [0.1, 0.2])["chi1"].shape == (1, 2)


@pytest.mark.parametrize(
    ("given", "code", "argument", "words"),
    [
        ({"weight_var": [[1.0, 2.0]]}, "invalid-argument", "weight_var", "along"),
        ({"bias_var": []}, "invalid-argument", "bias_var", ""),
        ({"keep": [0.5, 0.6]}, "invalid-argument", "keep", "one number"),
        ({"keep": 0.0}, "invalid-argument", "keep", "(0, 1]"),
        ({"weight_var": [-1.0]}, "invalid-argument", "weight_var", "expected 0"),
    ],
)
def test_bad_axes(given, code, argument, words):
    with refuses(code, argument=argument) as caught:
        phase_diagram("tanh", **{"weight_var": [1.0], "bias_var": [0.1], **given})
    assert words in str(caught.value)


def test_the_names_users_type():
    assert {"MeanField", "critical_weight_var", "phase_diagram", "linear_gradient_metrics"} < set(
        dir(theory)
    )
