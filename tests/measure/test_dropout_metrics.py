"""Random dropout networks: against networks written out by hand, against theory, and drawn against
implied weights."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refuses
from torch import Generator, nn

from orderone import theory
from orderone.measure import dropout_metrics, variance_law
from orderone.measure.dropout_metrics import QUANTITIES, Networks, _forward, _inputs, _measure
from orderone.measure.dropout_weights import Drawn, Implied
from orderone.measure.elementwise import TORCH_FUNCTIONS, value_and_slope


def means(frame: Any, quantity: str) -> Any:
    return frame[frame.quantity == quantity].set_index("layer")["mean"]


def errors(frame: Any, quantity: str) -> Any:
    return frame[frame.quantity == quantity].set_index("layer")["se"]


@pytest.mark.parametrize("activation", ["linear", "tanh", "relu", "gelu"])
def test_backpropagation_is_that_of_autograd(activation):
    """The same weights and masks, put into ordinary modules and differentiated by torch."""
    phi, slope = value_and_slope(theory.activations.get(activation))
    networks = Networks(phi, slope, 1.3, 0.2, 0.8, width=7, depth=5, weights=Drawn)
    inputs = torch.randn(3, 2, 7, dtype=torch.float64, generator=Generator().manual_seed(1))
    layers = list(_forward(networks, inputs, Generator().manual_seed(2)))
    measured = _measure(networks, inputs, Generator().manual_seed(2))
    for i in range(3):
        by_hand = [_gradients(activation, networks, layers, inputs, i, row) for row in (0, 1)]
        for level, (a, b) in enumerate(zip(*by_hand, strict=True)):
            expected = [
                a.square().mean(),
                (a * b).mean(),
                (a * b).mean().abs(),
                (a * b).abs().mean(),
            ]
            torch.testing.assert_close(measured[i, level, 3:], torch.stack(expected))


def _gradients(activation, networks, layers, inputs, i, row):
    known = {"linear": nn.Identity(), "tanh": nn.Tanh(), "relu": nn.ReLU(), "gelu": nn.GELU()}
    y, weights = inputs[i, row], []
    for layer in layers:
        W = (layer.weights.W[i] * (networks.weight_var / networks.width) ** 0.5).requires_grad_()
        bias = layer.z[i, row] - W.detach() @ layer.x[i, row]
        weights.append(W)
        y = known[activation](W @ (layer.open[i, row] * y) + bias)
    return torch.autograd.grad(y.square().sum(), weights)


@pytest.mark.parametrize(
    ("activation", "weight_var", "keep"),
    [("linear", 0.5, 0.9), ("tanh", 1.8, 0.8), ("relu", 1.5, 1.0)],
)
def test_implied_weights_have_the_law_of_drawn_ones(activation, weight_var, keep):
    """Small networks, where the effect of shared forward and backward weights is largest."""
    options = {"width": 12, "depth": 6, "instances": 30000, "q0": 0.3, "c0": 0.4}
    drawn = dropout_metrics(activation, weight_var, 0.1, keep, weights="drawn", seed=1, **options)
    implied = dropout_metrics(
        activation, weight_var, 0.1, keep, weights="implied", seed=2, **options
    )
    z = (drawn["mean"] - implied["mean"]) / np.hypot(drawn.se, implied.se)
    assert np.abs(z).max() < 4.5
    assert np.sqrt((z**2).mean()) < 2


def test_independent_backward_weights_would_be_detected(monkeypatch):
    """Independent backward weights (the gradient independence assumption) give other gradients at
    small width."""
    options = {"width": 12, "depth": 6, "instances": 30000, "q0": 0.3, "c0": 0.4}
    right = dropout_metrics("linear", 0.5, 0.1, 0.9, seed=1, **options)
    monkeypatch.setattr(
        Implied,
        "backward",
        lambda self, delta: Implied(self.variance, self.generator).forward(delta),
    )
    wrong = dropout_metrics("linear", 0.5, 0.1, 0.9, seed=2, **options)
    assert means(wrong, "g_aa")[1] < 0.9 * means(right, "g_aa")[1]


@pytest.mark.parametrize("keep", [0.9, 0.7])
def test_linear_networks_follow_the_general_form_of_12(keep):
    """Erratum S1.3: from any starting length. Finite networks differ by O(1/N)."""
    q0, c0, depth = 1.0, 0.3, 18
    frame = dropout_metrics(
        "linear", 0.5, 0.1, keep, width=1000, depth=depth, instances=400, q0=q0, c0=c0
    )
    g = theory.linear_gradient_metrics(
        weight_var=0.5, bias_var=0.1, keep=keep, depth=depth, q0=q0, qab0=c0 * q0
    )
    for quantity, predicted in (("g_aa", g["g_aa"]), ("g_ab", g["g_ab"])):
        measured, se = means(frame, quantity).to_numpy(), errors(frame, quantity).to_numpy()
        assert (np.abs(measured - predicted) < 4.5 * se + 0.04 * np.abs(predicted)).all()


def test_lengths_and_correlations_follow_the_maps():
    mf = theory.MeanField("tanh", weight_var=2.0, bias_var=0.1, keep=0.9)
    frame = dropout_metrics("tanh", 2.0, 0.1, 0.9, width=2000, depth=30, instances=40)
    assert means(frame, "q_aa")[30] == pytest.approx(
        mf.q_star, abs=5 * errors(frame, "q_aa")[30] + 2e-3
    )
    assert means(frame, "c_ab")[30] == pytest.approx(
        mf.c_star, abs=5 * errors(frame, "c_ab")[30] + 5e-3
    )


def test_g_aa_falls_as_chi1_and_signed_g_ab_as_chi2():
    """Erratum S1.4: it is |g_ab| of single pairs that seems to follow chi1."""
    mf = theory.MeanField("tanh", weight_var=1.4, bias_var=0.1, keep=0.9)
    frame = dropout_metrics(
        "tanh", 1.4, 0.1, 0.9, width=300, depth=40, instances=600, q0=mf.q_star, c0=mf.c_star
    )
    layers = np.arange(18, 34)

    def rate(quantity):
        return math.exp(-np.polyfit(layers, np.log(means(frame, quantity)[layers]), 1)[0])

    assert rate("g_aa") == pytest.approx(mf.chi1, rel=0.02)
    assert rate("g_ab") == pytest.approx(mf.chi2, rel=0.04)


def test_variance_grows_nearly_as_the_square_of_the_mean():
    """S1 figure 4; erratum S1.9: nearly."""
    frame = dropout_metrics("linear", 0.5, 0.1, 0.9, width=200, depth=60, instances=400)
    law = variance_law(frame, "g_aa")
    assert 1.8 < law.exponent < 2.1
    assert law.low < law.exponent < law.high


def test_hundreds_of_layers_do_not_underflow():
    frame = dropout_metrics(
        "linear", 0.1, 0.1, 0.9, width=20, depth=250, instances=3, dtype=torch.float32
    )
    first = means(frame, "g_aa")[1]
    assert 0 < first < 1e-200
    assert np.isfinite(frame["mean"]).all()


def test_dead_and_zero_networks_are_zero():
    dead = dropout_metrics("relu", 0.0, 0.0, 0.5, width=4, depth=5, instances=3)
    assert (means(dead, "g_aa") == 0).all()
    assert (means(dead, "c_ab") == 1).all()
    assert np.isfinite(dead["mean"]).all()


@pytest.mark.parametrize("c0", [-1.0, 1.0])
def test_inputs_on_one_line(c0):
    """The weights are then known on one axis only."""
    frame = dropout_metrics("linear", 1.0, 0.0, 1.0, width=30, depth=8, instances=5, c0=c0)
    np.testing.assert_allclose(means(frame, "c_ab"), c0, rtol=1e-9)
    np.testing.assert_allclose(
        means(frame, "g_ab"), means(frame, "g_aa"), rtol=1e-7
    )  # both factors change sign


def test_inputs_have_the_requested_sizes_and_correlation():
    pair = _inputs(5, 40, 2.5, -0.3, Generator().manual_seed(0), torch.float64)
    gram = pair @ pair.mT / 40
    np.testing.assert_allclose(gram[:, 0, 0], 2.5)
    np.testing.assert_allclose(gram[:, 0, 1], -0.75)


def test_memory_limits_the_portions_and_progress_is_called():
    calls = []
    frame = dropout_metrics(
        width=10, depth=3, instances=7, memory=1, progress=lambda *told: calls.append(told)
    )
    assert [done for done, _, _ in calls] == list(range(1, 8))
    assert set(frame.quantity) == set(QUANTITIES)
    assert len(frame) == 3 * len(QUANTITIES)


def test_seeds_decide_and_the_state_of_torch_is_unchanged():
    before = torch.get_rng_state()
    one, same, other = (
        dropout_metrics(width=8, depth=2, instances=4, seed=seed) for seed in (3, 3, 4)
    )
    assert one.equals(same)
    assert not one.equals(other)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", TORCH_FUNCTIONS)
def test_torch_and_theory_agree_on_an_activation(name):
    x = torch.linspace(-60, 60, 4001, dtype=torch.float64) + 1e-3
    phi, slope = value_and_slope(theory.activations.get(name))
    known = theory.activations.get(name)
    np.testing.assert_allclose(phi(x), known(x), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(slope(x), known.derivative(x), rtol=1e-12, atol=1e-14)


def test_any_function_is_an_activation():
    frame = dropout_metrics(lambda x: np.sin(x) ** 3, 1.0, 0.1, width=10, depth=3, instances=4)
    assert np.isfinite(frame["mean"]).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weight_var": -1.0}, "weight_var: "),
        ({"bias_var": math.nan}, "bias_var: "),
        ({"keep": 0.0}, "keep: "),
        ({"c0": 1.5}, "c0: "),
        ({"q0": [1.0, 2.0]}, "q0: .*one number"),
        ({"activation": "tangh"}, "activation.*'tanh'"),
        ({"weights": "none"}, "weights.*'none'"),
        ({"width": 1}, "width: "),
        ({"instances": 1}, "instances: "),
        ({"activation": "relu", "weight_var": 1e30, "depth": 30}, r"depth: .*\[signals-lost\]"),
    ],
)
def test_wrong_arguments_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        dropout_metrics(**{"width": 4, "depth": 2, "instances": 2} | options)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(theory.activations.names()),
    st.floats(0, 3),
    st.floats(0, 1),
    st.floats(0.05, 1),
    st.floats(-1, 1),
)
def test_all_legal_arguments_give_numbers(activation, weight_var, bias_var, keep, c0):
    frame = dropout_metrics(
        activation, weight_var, bias_var, keep, width=6, depth=4, instances=3, c0=c0
    )
    assert not frame[["mean", "var", "se"]].isna().to_numpy().any()
    assert means(frame, "c_ab").abs().max() <= 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": 0},
        {"memory": float("nan")},
        {"memory": "x"},
        {"memory": float("inf")},
        {"dtype": "float64"},
        {"dtype": torch.int32},
        {"device": "nowhere"},
        {"progress": 3},
    ],
)
def test_impossible_options_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: "):
        dropout_metrics(width=4, depth=2, instances=2, **wrong)


def test_a_variance_law_needs_several_layers():
    frame = dropout_metrics("tanh", width=20, depth=2, instances=4)
    with refuses("invalid-argument", argument="frame") as caught:
        variance_law(frame, "g_aa")
    assert "g_aa" in str(caught.value)
