"""Errors about invalid parameters of networks name the argument."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refuses

from orderone.theory import (
    MeanField,
    activations,
    critical_weight_var,
    linear_gradient_metrics,
    phase_diagram,
)

not_a_variance = st.one_of(
    st.floats(max_value=-1e-300),
    st.sampled_from([math.nan, math.inf, -math.inf, "x", None, [], [1.0, -2.0]]),
)
not_a_rate = st.one_of(
    st.floats(max_value=0),
    st.floats(min_value=1.0000001),
    st.sampled_from([math.nan, "x", None, []]),
)
not_a_correlation = st.one_of(
    st.floats(max_value=-1.0001),
    st.floats(min_value=1.0001),
    st.sampled_from([math.nan, "x", None, []]),
)


@given(not_a_variance)
def test_variances(value):
    for name in ("weight_var", "bias_var"):
        with refuses("invalid-argument", argument=name):
            MeanField("tanh", **{"weight_var": 1.0, "bias_var": 0.1, name: value})
    with refuses("invalid-argument", argument="bias_var"):
        critical_weight_var("tanh", bias_var=value)


@given(not_a_rate)
def test_keep_rates(value):
    with refuses("invalid-argument", argument="keep"):
        MeanField("tanh", 1.0, 0.1, value)


@given(not_a_correlation)
def test_correlations(value):
    network = MeanField("tanh", 1.0, 0.1)
    with refuses("invalid-argument", argument="c"):
        network.correlation_map(value)
    with refuses("invalid-argument", argument="c0"):
        network.trajectory(1.0, value, 3)


@given(not_a_variance)
def test_lengths(value):
    network = MeanField("tanh", 1.0, 0.1)
    with refuses("invalid-argument", argument="q"):
        network.length_map(value)
    with refuses("invalid-argument", argument="q0"):
        network.trajectory(value, 0.5, 3)


@pytest.mark.parametrize(
    ("make", "code", "argument", "words"),
    [
        (lambda: MeanField("tahn"), "unknown-name", "activation", "mean 'tanh'"),
        (lambda: MeanField(lambda x: x.sum()), "not-elementwise", "activation", ""),
        (
            lambda: MeanField("tanh", [1.0, 2.0], [0.1, 0.2, 0.3]),
            "invalid-argument",
            None,
            "that broadcast",
        ),
        (lambda: MeanField("tanh", [1.0, 2.0]).correlations(), "invalid-argument", None, "network"),
        (
            lambda: MeanField("tanh").trajectory([1.0, 2.0, 3.0], 0.5, 2),
            "invalid-argument",
            "q0",
            "two inputs",
        ),
        (lambda: MeanField("tanh").trajectory(1.0, 0.5, -1), "invalid-argument", "depth", ""),
    ],
)
def test_other_invalid_calls_are_refused(make, code, argument, words):
    with refuses(code, argument=argument) as caught:
        make()
    assert words in str(caught.value)


@given(
    st.floats(0, 1e8),
    st.floats(0, 1e8),
    st.floats(1e-6, 1),
    st.sampled_from(["tanh", "relu", "erf", "gelu", "sin", "step", "linear"]),
)
@settings(deadline=None)
def test_every_legal_network_has_an_answer(weight_var, bias_var, keep, name):
    with np.errstate(all="raise", under="ignore"):
        network = MeanField(name, weight_var, bias_var, keep)
        values = [getattr(network, x) for x in ("q_star", "c_star", "chi1", "chi2", "xi1", "xi2")]
    assert not np.isnan([*values, network.trainable_depth()]).any()
    assert network.status in ("converged", "diverges")


@pytest.mark.parametrize(
    "wrong",
    [
        {"weight_var": 10**400},
        {"weight_var": None},
        {"tolerance": "x"},
        {"tolerance": math.nan},
        {"tolerance": -1.0},
        {"activation": lambda x: x + 1j},
    ],
)
def test_other_invalid_parameters_are_refused(wrong):
    (argument,) = wrong
    with refuses("invalid-argument", argument=argument):
        MeanField(**wrong)


@pytest.mark.parametrize("kinks", [(math.nan,), "a"])
def test_kinks_are_numbers_and_belong_to_functions(kinks):
    with refuses("invalid-argument", argument="kinks"):
        activations.get(np.tanh, kinks=kinks)
    with refuses("invalid-argument", argument="kinks"):
        activations.get("tanh", kinks=(1.0,))


def test_tensors_of_any_kind():
    torch = pytest.importorskip("torch")
    exact = MeanField("tanh", 1.5, 0.1).q_star
    assert float(
        MeanField("tanh", torch.tensor([1.5], requires_grad=True), 0.1).q_star
    ) == pytest.approx(exact, rel=1e-6)
    assert float(
        MeanField("tanh", torch.tensor([1.5], dtype=torch.bfloat16), 0.1).q_star
    ) == pytest.approx(exact, rel=1e-2)


def test_tiny_keep_rates_of_linear_networks():
    assert not np.isnan(np.concatenate(linear_gradient_metrics(0.5, 0.1, 1e-300, 3))).any()


@pytest.mark.parametrize("method", ["length_map", "correlation_map"])
def test_maps_refuse_shapes_that_do_not_broadcast(method):
    with refuses("invalid-argument", argument=method[0].replace("l", "q")) as caught:
        getattr(MeanField("tanh", np.ones(3)), method)(np.ones(2))
    assert "broadcasts" in str(caught.value)


def test_tensors_come_back_as_tensors():
    torch = pytest.importorskip("torch")
    network, plain = MeanField("tanh", 1.5, 0.1), [0.5, 2.0]
    given = torch.tensor(plain, dtype=torch.float64, requires_grad=True)
    for name in ("length_map", "correlation_map"):
        x, y = (given, plain) if name == "length_map" else (given / 4, [0.125, 0.5])
        result = getattr(network, name)(x)
        assert isinstance(result, torch.Tensor)
        assert result.dtype == torch.float64
        assert result.numpy() == pytest.approx(getattr(network, name)(np.array(y)), rel=1e-14)
    path = network.trajectory(torch.tensor(1.0), 0.5, 3)
    assert all(isinstance(values, torch.Tensor) for values in (path.q, path.c, path.q_ab, path.gap))
    single = MeanField("tanh", torch.tensor(1.5, dtype=torch.float64), 0.1)
    assert isinstance(single.q_star, torch.Tensor)
    assert float(single.q_star) == pytest.approx(network.q_star, rel=1e-14)
    diagram = phase_diagram("tanh", given, torch.tensor([0.1]), 0.9)
    assert all(
        isinstance(diagram[name], torch.Tensor) and diagram[name].shape == (2, 1)
        for name in diagram
    )
    assert diagram.phase.shape == (2, 1)


def test_networks_of_arrays_can_be_compared_and_hashed():
    one, same, other = (MeanField("tanh", np.array([1.0, w])) for w in (2.0, 2.0, 3.0))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != MeanField("erf", np.array([1.0, 2.0]))
    assert one != "tanh"


@pytest.mark.parametrize("name", ["tanh", "linear", "relu"])
def test_the_smallest_keep_rates(name):
    network = MeanField(name, 1.0, 0.1, 1e-320)
    results = [network.q_star, network.c_star, network.chi1, network.chi2, network.xi1, network.xi2]
    results += [
        network.correlation_map(0.5),
        network.length_map(2.0),
        *network.trajectory(1.0, 0.5, 3).c,
    ]
    assert not np.isnan(results).any()
    assert -1 <= network.correlation_map(0.5) <= 1


@pytest.mark.parametrize("average", ["pair", "derivative_pair", "output_gap"])
@pytest.mark.parametrize("name", ["tanh", "relu", "hard-tanh"])
def test_pairs_refuse_shapes_that_do_not_broadcast(name, average):
    with refuses("invalid-argument") as caught:
        getattr(activations.get(name), average)(np.ones(2), np.ones(3), 0.5)
    assert str(caught.value).startswith("q1, q2, gap: ")


def test_the_marginal_linear_network_has_one_convention():
    """weight_var = keep and no bias: every length stays; both take 1."""
    assert MeanField("linear", 0.9, 0.0, 0.9).q_star == 1
    fixed, given = (
        linear_gradient_metrics(0.9, 0.0, 0.9, 3),
        linear_gradient_metrics(0.9, 0.0, 0.9, 3, q0=1.0),
    )
    assert fixed.g_aa == pytest.approx(given.g_aa)


def test_fast_waves_answer_quickly_with_a_depth_scale():
    """chi_2 is far below rounding; its sign is that of rounding, and xi_2 is a number."""
    start = time.process_time()
    network = MeanField(lambda x: np.sin(30 * x), 1.0, 3.7, 0.5)
    assert float(network.chi2) == pytest.approx(0, abs=1e-12)
    assert 0 <= float(network.xi2) < 0.1
    assert time.process_time() - start < 10
