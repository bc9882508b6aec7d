"""Gradient metrics: the closed form against networks with real backpropagation, and what the errata
refute."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.errors import refuses

from orderone.measure import dropout_metrics
from orderone.theory import MeanField, linear_gradient_metrics, meanfield


def printed(weight_var, bias_var, keep, depth):
    """S1 (12), where every layer has the lengths of the fixed point."""
    q, q_ab = bias_var / (1 - weight_var / keep), bias_var / (1 - weight_var)
    chi1, k = weight_var / keep, depth - np.arange(1, depth + 1)
    sums = (
        np.array([sum(r**j for j in range(1, n + 1)) for n in k])
        for r in (chi1, weight_var / keep**2)
    )
    g_aa = 4 * (q / keep) ** 2 * chi1**k * (keep + next(sums))
    return g_aa, 4 * q_ab**2 * weight_var**k * (1 + next(sums))


@given(st.floats(0.01, 0.6), st.floats(0.0, 2), st.floats(0.65, 1), st.integers(1, 40))
def test_linear_metrics_at_the_fixed_point_are_the_papers_formula(
    weight_var, bias_var, keep, depth
):
    metrics = linear_gradient_metrics(weight_var, bias_var, keep, depth)
    for ours, theirs in zip(metrics, printed(weight_var, bias_var, keep, depth), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-11)
        assert len(ours) == depth


def backpropagation(rng, width, depth, weight_var, bias_var, keep, x):
    """g_aa and signed g_ab of every layer, for one network and two sets of masks."""
    W = rng.normal(0, math.sqrt(weight_var / width), (depth, width, width))
    b = rng.normal(0, math.sqrt(bias_var), (depth, width, 1))
    p = (rng.random((depth, width, 2)) < keep) / keep
    inputs, z = [], x
    for layer in range(depth):
        inputs.append(p[layer] * z)
        z = W[layer] @ inputs[-1] + b[layer]
    delta, g_aa, g_ab = 2 * z, np.empty(depth), np.empty(depth)
    for layer in reversed(range(depth)):
        a, d = inputs[layer] / math.sqrt(width), delta / math.sqrt(width)
        g_aa[layer] = ((d**2).sum(0) * (a**2).sum(0)).mean()
        g_ab[layer] = (d[:, 0] @ d[:, 1]) * (a[:, 0] @ a[:, 1])
        delta = p[layer] * (W[layer].T @ delta)
    return g_aa, g_ab


@pytest.fixture(scope="module")
def measured():
    """100 networks, weight_var .5, bias_var .1, keep .9, ten layers, an input of squared length
    one, given twice."""
    rng, width = np.random.default_rng(0), 120
    x = np.ones((width, 2))
    runs = np.array([backpropagation(rng, width, 10, 0.5, 0.1, 0.9, x) for _ in range(100)])
    return runs.mean(0), runs.std(0) / math.sqrt(len(runs))


def test_linear_metrics_agree_with_networks_from_any_start(measured):
    """Erratum S1.3."""
    (g_aa, g_ab), (error_aa, error_ab) = measured
    metrics = linear_gradient_metrics(0.5, 0.1, 0.9, 10, q0=1.0)
    assert (np.abs(metrics.g_aa - g_aa) < 5 * error_aa + 0.04 * g_aa).all()
    assert (np.abs(metrics.g_ab - g_ab) < 5 * error_ab + 0.04 * g_ab).all()


def test_the_papers_formula_does_not_agree_with_networks(measured):
    """With an input that is not at the fixed point, (12) as printed is several times too small at
    the first layer."""
    assert measured[0][0][0] > 3 * printed(0.5, 0.1, 0.9, 10)[0][0]


def test_equation_s2_lacks_a_factor():
    """Erratum S1.6: (S2) as printed is keep times too small."""
    q = 0.1 / (1 - 0.5 / 0.7)
    expected = 4 * (q / 0.7) * (0.5 / 0.7) * (0.7 + 0.5 / 0.7) * q / 0.7
    assert linear_gradient_metrics(0.5, 0.1, 0.7, 30).g_aa[-2] == pytest.approx(expected)


def test_decay_of_g_ab():
    """Erratum S1.5: chi_2 a layer only if weight_var < keep^2, else chi_1^2."""
    for keep, rate in ((0.9, 0.5), (0.6, (0.5 / 0.6) ** 2)):
        g_ab = linear_gradient_metrics(0.5, 0.1, keep, 400).g_ab
        assert g_ab[50] / g_ab[51] == pytest.approx(rate, rel=1e-6)


def test_a_given_overlap():
    same, other = (linear_gradient_metrics(0.5, 0.1, 0.9, 5, q0=1.0, qab0=o) for o in (1.0, -0.5))
    assert same.g_aa == pytest.approx(other.g_aa)
    assert other.g_ab[0] < 0 < same.g_ab[0]


def test_lengths_that_diverge():
    metrics = linear_gradient_metrics(0.5, 0.1, 0.4, 5)
    assert (metrics.g_aa == math.inf).all()
    assert np.isfinite(metrics.g_ab).all()
    deep = linear_gradient_metrics(3.0, 0.1, 0.5, 2000, q0=1.0)
    assert not np.isnan(np.concatenate(deep)).any()


def test_unpacks_and_has_names():
    g_aa, g_ab = metrics = linear_gradient_metrics(weight_var=0.5, bias_var=0.1, keep=0.9, depth=3)
    assert metrics["g_aa"] is metrics.g_aa is g_aa
    assert metrics["g_ab"] is g_ab


def test_exponential_laws_and_noise():
    network = MeanField("tanh", 1.2, 0.1, 0.9)
    law = meanfield.gradient_law(network, depth=60, width=500)
    assert law.g_aa[:9] / law.g_aa[1:10] == pytest.approx(np.full(9, network.chi1))
    assert law.g_ab[:9] / law.g_ab[1:10] == pytest.approx(np.full(9, network.chi2))
    k = int(law.crossover)  # between these two layers the noise overtakes
    assert law.g_ab[-1 - k] > law.noise[-1 - k]
    assert law.g_ab[-2 - k] < law.noise[-2 - k]
    assert law.noise[0] < meanfield.gradient_law(network, 60, 50).noise[0]


def test_a_ratio_and_a_level_of_the_user():
    network = MeanField("tanh", 1.2, 0.1, 0.9)
    law = meanfield.gradient_law(network, 60, 500, ratio=1.0, level=0.76)
    assert law.noise == pytest.approx(0.76 / math.sqrt(500) * law.g_aa)
    assert law.g_ab[-1] == 1
    plain = meanfield.crossover_depth(network.chi1, network.chi2, 500, ratio=1.0, level=0.76)
    assert plain == pytest.approx(
        math.log(math.sqrt(500) / 0.76) / math.log(network.chi1 / network.chi2)
    )
    assert plain == pytest.approx(law.crossover, rel=0.1)
    # without dropout the two never part
    assert meanfield.crossover_depth(0.8, 0.8, 500, 1.0, 0.76) == math.inf


def test_the_crossover_has_no_universal_ratio_or_level():
    with pytest.raises(TypeError):
        meanfield.crossover_depth(0.8, 0.5, 500)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("network", [(0.55, 0.1, 0.6), (0.5, 0.1, 0.9), (0.5, 0.1, 0.7)])
def test_ratio_and_noise_of_linear_networks_depend_on_the_network(network):
    """The ratio at the output is keep c*^2, the noise far from it c* keep / sqrt(1 - keep^2)."""
    field = MeanField("linear", *network)
    law = meanfield.gradient_law(field, 120, 400)
    exact = linear_gradient_metrics(*network, depth=120)
    assert law.g_ab[-1] == pytest.approx(network[2] * field.c_star**2)
    assert law.g_ab == pytest.approx(exact.g_ab / exact.g_aa[-1], rel=1e-9)
    level = meanfield.linear_noise_level(network[2], field.c_star)
    assert law.noise[0] * 20 / law.g_aa[0] == pytest.approx(level, rel=1e-6)


def test_signals_without_correlation_have_no_overlap_of_gradients():
    law = meanfield.gradient_law(MeanField("tanh", 1.4, 0.0, 0.9), 10, 100)
    assert law.g_ab == pytest.approx(np.zeros(10), abs=1e-12)
    assert law.crossover == 0


@pytest.mark.parametrize(
    "network",
    [(0.55, 0.1, 0.6), (0.5, 0.1, 0.9), (0.5, 0.1, 0.7), (0.49, 0.1, 0.7), (0.5, 0.1, 1.0)],
)
def test_the_law_of_linear_networks_is_exact(network):
    """Erratum S1.5, on both sides of weight_var = keep^2, and on it."""
    law, exact = (
        meanfield.gradient_law(MeanField("linear", *network), 60, 500),
        linear_gradient_metrics(*network, depth=60),
    )
    assert law.g_aa == pytest.approx(exact.g_aa / exact.g_aa[-1], rel=1e-12)
    assert law.g_ab == pytest.approx(exact.g_ab / exact.g_aa[-1], rel=1e-9)


def test_the_aligned_part_decays_with_the_square_of_the_length_slope():
    network = MeanField("relu", 1.4, 0.1, 0.8)
    law = meanfield.gradient_law(network, 60, 500)
    assert network.chi2 < (0.7 / 0.8) ** 2
    assert law.g_ab[0] / law.g_ab[1] == pytest.approx((0.7 / 0.8) ** 2)


@pytest.mark.parametrize(
    ("name", "weight_var", "bias_var", "keep", "layers"),
    [
        ("tanh", 1.2, 0.1, 0.9, 12),
        ("relu", 1.4, 0.1, 0.8, 12),
        ("relu", 1.2, 0.1, 0.95, 12),
        ("tanh", 0.7, 0.1, 0.6, 5),
    ],
)
def test_the_law_agrees_with_nonlinear_networks(name, weight_var, bias_var, keep, layers):
    """Real backpropagation at the fixed point, where plain exponentials are off by factors of up to
    500."""
    torch = pytest.importorskip("torch")
    network = MeanField(name, weight_var, bias_var, keep)
    length = network.phi.second_moment(network.q_star)
    overlap = (network.q_star * network.c_star - bias_var) / weight_var / length
    given = {
        "width": 600,
        "depth": 13,
        "instances": 150,
        "q0": length,
        "c0": overlap,
        "dtype": torch.float32,
    }
    frame: Any = dropout_metrics(name, weight_var, bias_var, keep, **given)
    law = meanfield.gradient_law(network, 13, 600)
    for quantity in ("g_aa", "g_ab"):
        lines = frame[frame.quantity == quantity].sort_values("layer")[-layers:]
        curve = getattr(law, quantity)[-layers:]
        expected = curve / curve[-1] * lines["mean"].iloc[-1]
        error = np.abs(lines["mean"] - expected)
        assert (error < 5 * lines["se"] + 0.03 * expected).all()
    plain = network.chi2 ** np.arange(layers - 1, -1, -1.0) * lines["mean"].iloc[-1]
    assert (np.abs(lines["mean"] - plain) > 5 * lines["se"] + 0.03 * plain).any()


@pytest.mark.parametrize(
    ("name", "weight_var", "bias_var", "keep"),
    [("linear", 0.5, 0.1, 0.7), ("tanh", 1.2, 0.1, 0.9), ("hard-tanh", 1.2, 0.1, 0.8)],
)
def test_ratio_and_noise_agree_with_networks(name, weight_var, bias_var, keep):
    """Ten layers before the output and more, where gradients are noise."""
    torch = pytest.importorskip("torch")
    network = MeanField(name, weight_var, bias_var, keep)
    length = network.phi.second_moment(network.q_star)
    frame: Any = dropout_metrics(
        name,
        weight_var,
        bias_var,
        keep,
        width=256,
        depth=16,
        instances=200,
        q0=length,
        c0=(network.q_star * network.c_star - bias_var) / weight_var / length,
        dtype=torch.float32,
    )
    law = meanfield.gradient_law(network, 16, 256)
    g_aa = frame[frame.quantity == "g_aa"].sort_values("layer")["mean"].to_numpy()
    overlaps = frame[frame.quantity == "g_ab"].sort_values("layer")
    ratio = overlaps["mean"].iloc[-1] / g_aa[-1]
    assert abs(ratio - law.g_ab[-1]) < 5 * overlaps["se"].iloc[-1] / g_aa[-1] + 0.02 * ratio
    std = overlaps["se"].to_numpy() * math.sqrt(200)
    level = np.mean((std / g_aa)[:4])
    assert level == pytest.approx(np.mean((law.noise / law.g_aa)[:4]), rel=0.25)


@pytest.mark.parametrize("wrong", [None, 3.0])
def test_a_law_needs_a_network(wrong):
    with refuses("wrong-type", argument="network"):
        meanfield.gradient_law(wrong, 3, 100)


def test_a_law_is_that_of_one_network():
    with refuses("invalid-argument") as caught:
        meanfield.gradient_law(MeanField("linear", np.array([0.5, 0.6])), 3, 100)
    assert "one network" in str(caught.value)


def test_the_noise_of_g_ab_is_as_predicted():
    """Erratum S1.4: std(g_ab) sqrt(N) / g_aa is of order one, whatever the width, deep in the
    network."""
    rng = np.random.default_rng(1)
    levels = []
    for width in (40, 160):
        runs = np.array(
            [
                backpropagation(rng, width, 24, 0.5, 0.1, 0.7, np.ones((width, 2)))
                for _ in range(120)
            ]
        )
        levels.append(runs[:, 1, 4].std() * math.sqrt(width) / runs[:, 0, 4].mean())
    assert min(levels) > 0.3
    assert max(levels) < 2


@pytest.mark.parametrize(
    ("given", "code", "argument", "words"),
    [
        ({"weight_var": -0.1}, "invalid-argument", "weight_var", "expected 0"),
        ({"keep": 1.2}, "invalid-argument", "keep", ""),
        ({"bias_var": math.nan}, "invalid-argument", "bias_var", "expected 0"),
        ({"depth": 0}, "invalid-argument", "depth", ""),
        ({"q0": -1.0}, "invalid-argument", "q0", "between"),
        ({"q0": 1.0, "qab0": 1.5}, "invalid-argument", "qab0", "between -1"),
        ({"weight_var": [0.1, 0.2]}, "invalid-argument", "weight_var", "one number"),
        ({"q0": "one"}, "invalid-argument", "q0", "a number"),
    ],
)
def test_bad_input(given, code, argument, words):
    with refuses(code, argument=argument) as caught:
        linear_gradient_metrics(
            **{"weight_var": 0.5, "bias_var": 0.1, "keep": 0.9, "depth": 5, **given}
        )
    assert words in str(caught.value)


def test_variances_of_linear_gradients():
    """q~ of S1 (S8)-(S11), (S21)-(S24): the first layers by hand, and g = q q~ for all."""
    w, b, rho, q0 = 0.5, 0.1, 0.9, 2.0
    delta = meanfield.linear_gradient_variances(w, b, rho, 6, q0=q0)
    metrics = meanfield.linear_gradient_metrics(w, b, rho, 6, q0=q0)
    q = [q0]
    q_ab = [q0]
    for _ in range(6):
        q.append(w / rho * q[-1] + b)
        q_ab.append(w * q_ab[-1] + b)
    # delta^L = 2 z^L; delta^(L-1) = (p / rho) W^T delta^L, whose mean square has the term (W^2)^2
    assert delta.q_aa[-1] == pytest.approx(4 * q[6])
    assert delta.q_aa[-2] == pytest.approx(4 * w / rho * (q[6] + w / rho**2 * q[5]))
    assert delta.q_ab[-2] == pytest.approx(4 * w * (q_ab[6] + w / rho**2 * q_ab[5]))
    np.testing.assert_allclose(metrics.g_aa, np.array(q[:-1]) / rho * delta.q_aa)
    np.testing.assert_allclose(metrics.g_ab, np.array(q_ab[:-1]) * delta.q_ab)


def test_the_size_of_the_last_gradient():
    """The scale of (9) and (11): exactly for linear networks, and by draws for tanh."""
    linear = meanfield.MeanField("linear", 0.5, 0.1, 0.9)
    law = meanfield.gradient_law(linear, 4, 100)
    exact = meanfield.linear_gradient_metrics(0.5, 0.1, 0.9, 4)
    assert law.scale == pytest.approx(exact.g_aa[-1], rel=1e-9)
    np.testing.assert_allclose(law.scale * law.g_aa, exact.g_aa, rtol=1e-9)
    tanh = meanfield.MeanField("tanh", 1.4, 0.1, 0.9)
    z = np.random.default_rng(0).normal(0, float(tanh.q_star) ** 0.5, 400_000)
    phi = np.tanh(z)
    drawn = 4 / 0.9 * (phi**2).mean() * (phi**2 * (1 - phi**2) ** 2).mean()
    assert meanfield.gradient_law(tanh, 4, 100).scale == pytest.approx(drawn, rel=0.01)
