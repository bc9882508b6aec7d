"""Wrong parameters are a ValueError that says what was expected, what came, and what to do."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderone.theory import MeanField, activations, critical_weight_var, linear_gradient_metrics

not_a_variance = st.one_of(
    st.floats(max_value=-1e-300), st.sampled_from([math.nan, math.inf, -math.inf, "x", None, [], [1.0, -2.0]])
)
not_a_rate = st.one_of(
    st.floats(max_value=0), st.floats(min_value=1.0000001), st.sampled_from([math.nan, "x", None, []])
)
not_a_correlation = st.one_of(
    st.floats(max_value=-1.0001), st.floats(min_value=1.0001), st.sampled_from([math.nan, "x", None, []])
)


@given(not_a_variance)
def test_variances(value):
    for name in ("weight_var", "bias_var"):
        with pytest.raises(ValueError, match=f"{name}: expected .*got"):
            MeanField("tanh", **{"weight_var": 1.0, "bias_var": 0.1, name: value})
    with pytest.raises(ValueError, match=r"bias_var: expected .*got"):
        critical_weight_var("tanh", bias_var=value)


@given(not_a_rate)
def test_keep_rates(value):
    with pytest.raises(ValueError, match=r"keep: expected .*got"):
        MeanField("tanh", 1.0, 0.1, value)


@given(not_a_correlation)
def test_correlations(value):
    network = MeanField("tanh", 1.0, 0.1)
    with pytest.raises(ValueError, match=r"c: expected .*got"):
        network.correlation_map(value)
    with pytest.raises(ValueError, match=r"c0: expected .*got"):
        network.trajectory(1.0, value, 3)


@given(not_a_variance)
def test_lengths(value):
    network = MeanField("tanh", 1.0, 0.1)
    with pytest.raises(ValueError, match=r"q: expected .*got"):
        network.length_map(value)
    with pytest.raises(ValueError, match=r"q0: expected .*got"):
        network.trajectory(value, 0.5, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MeanField("tahn"), "did you mean 'tanh'"),
        (lambda: MeanField(lambda x: x.sum()), "make it elementwise"),
        (lambda: MeanField("tanh", [1.0, 2.0], [0.1, 0.2, 0.3]), "expected shapes that broadcast"),
        (lambda: MeanField("tanh", [1.0, 2.0]).correlations(), "expected one network"),
        (lambda: MeanField("tanh").trajectory([1.0, 2.0, 3.0], 0.5, 2), "one for each of two inputs"),
        (lambda: MeanField("tanh").trajectory(1.0, 0.5, -1), "depth: expected a whole number"),
    ],
)
def test_other_mistakes(make, message):
    with pytest.raises(ValueError, match=message):
        make()


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
def test_more_that_is_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        MeanField(**wrong)


@pytest.mark.parametrize("kinks", [(math.nan,), "a"])
def test_kinks_are_numbers_and_belong_to_functions(kinks):
    with pytest.raises(ValueError, match="kinks"):
        activations.get(np.tanh, kinks=kinks)
    with pytest.raises(ValueError, match="kinks"):
        activations.get("tanh", kinks=(1.0,))


def test_tensors_of_any_kind():
    torch = pytest.importorskip("torch")
    exact = MeanField("tanh", 1.5, 0.1).q_star
    assert float(MeanField("tanh", torch.tensor([1.5], requires_grad=True), 0.1).q_star) == pytest.approx(
        exact, rel=1e-6
    )
    assert float(MeanField("tanh", torch.tensor([1.5], dtype=torch.bfloat16), 0.1).q_star) == pytest.approx(
        exact, rel=1e-2
    )


def test_tiny_keep_rates_of_linear_networks():
    assert not np.isnan(np.concatenate(linear_gradient_metrics(0.5, 0.1, 1e-300, 3))).any()


@pytest.mark.parametrize("method", ["length_map", "correlation_map"])
def test_maps_of_shapes_that_do_not_meet(method):
    with pytest.raises(ValueError, match="broadcasts"):
        getattr(MeanField("tanh", np.ones(3)), method)(np.ones(2))
