"""Depth reports: agreement with sampled networks, regimes, remedies that work, and errors."""

import numpy as np
import pytest
from support.errors import refuses

from orderone.core.covariances import correlation
from orderone.measure import sample_network
from orderone.theory import depth_report
from orderone.theory.activations import get
from orderone.theory.limits import correlation_ode, depth_law, ks
from orderone.theory.limits.small_networks import normalized, sampled, sampled_wide

NETWORKS = [
    ({"width": 200, "depth": 40}, "relu", {}),
    ({"width": 50, "depth": 50}, "relu", {}),
    (
        {"width": 100, "depth": 60, "activation": "shaped-relu"},
        "shaped-relu",
        {"c_minus": -((100 / 60) ** 0.5)},
    ),
    ({"width": 60, "depth": 60, "activation": "linear"}, "linear", {}),
    ({"width": 100, "depth": 50, "residual": True}, "resnet", {}),
]


@pytest.mark.parametrize(("setting", "kind", "options"), NETWORKS)
def test_networks_spread_as_reported(setting, kind, options):
    report = depth_report(**setting)
    V = sample_network(
        kind, width=setting["width"], depth=setting["depth"], samples=2000, **options
    )
    assert np.log(V[:, 0, 0]).std() == pytest.approx(report.norm_spread, rel=0.12)
    assert V[:, 0, 0].mean() == pytest.approx(report.growth, rel=0.5)
    quantiles = np.quantile(correlation(V)[:, 0, 1], list(report.correlation))
    # on the scale on which correlations have a constant error
    np.testing.assert_allclose(
        np.arctanh(list(report.correlation.values())), np.arctanh(quantiles), atol=0.45
    )


@pytest.mark.parametrize(("setting", "kind", "options"), NETWORKS)
def test_the_law_behind_a_report_is_that_of_networks(setting, kind, options):
    law = depth_law(**setting)
    V = sample_network(
        kind, width=setting["width"], depth=setting["depth"], samples=2000, **options
    )
    rho = V[:, 0, 1] / np.sqrt(V[:, 0, 0] * V[:, 1, 1])
    assert (
        ks(law.log_norms, np.log(V[:, 0, 0])) < 0.12
    )  # finite networks are near their limits, not on them
    assert ks(law.correlations, rho) < 0.12
    other = depth_law(**setting | {"depth": 3 * setting["depth"], "rho0": 0.6})
    assert ks(other.correlations, rho) > 0.3


def test_regimes():
    assert depth_report(4096, 12).regime == "gaussian"
    assert depth_report(100, 20, "linear").regime == "lognormal"
    assert depth_report(150, 150).regime == "degenerate"
    assert (
        depth_report(10_000, 1000, rho0=0.0).regime == "degenerate"
    )  # not the ratio: correlations alone
    assert depth_report(10_000, 1000, "shaped-relu").regime == "lognormal"
    assert depth_report(100, 3000, "linear").regime == "degenerate"


def test_remedies_help():
    bad = depth_report(2000, 96)
    assert bad.regime == "degenerate"
    assert any("shape_activations(model, depth=96)" in remedy for remedy in bad.remedies)
    assert depth_report(2000, 96, "shaped-relu").correlation[0.5] < 0.6
    assert depth_report(2000, 96, residual=True).regime == "gaussian"
    exploding = depth_report(512, 96, residual=1.0)
    assert exploding.growth > 1e12
    assert exploding.remedies == ("scale residual branches by 0.102 = 1/sqrt(depth)",)
    assert "e^" in " ".join(exploding.reasons)
    assert depth_report(16, 96, residual=True).remedies == ("use a width of 52 or more",)
    assert depth_report(52, 96, residual=True).regime == "gaussian"


def test_very_deep_residual_networks_have_a_limit():
    deep, deeper = (depth_report(500, d, residual=True) for d in (1000, 10**6))
    assert deep.norm_spread == pytest.approx(deeper.norm_spread, rel=1e-2)
    assert deep.correlation[0.5] == pytest.approx(deeper.correlation[0.5], abs=1e-3)
    assert deep.correlation[0.5] == pytest.approx(float(correlation_ode(0.3, 1.0)), abs=1e-3)


def test_strong_branches_spread_in_proportion_to_depth():
    """b = 1/2: beyond the layers that are followed one by one, the variance goes on growing."""
    shallow, deep = (depth_report(10**6, d, residual=1.0).norm_spread ** 2 for d in (2000, 20_000))
    assert deep == pytest.approx(10 * shallow, rel=0.02)


def test_text():
    text = str(depth_report(150, 150))
    assert text.startswith("width 150, depth 150, relu: degenerate")
    assert "remedy: shape the activation: slopes 1 and 0.918" in text
    assert "residual branches x 0.1" in str(depth_report(64, 100, residual=True))


@pytest.mark.parametrize("rho0", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("size", [(1, 1), (3, 1000), (100_000, 3), (50, 10**7)])
@pytest.mark.parametrize(
    "option", [{}, {"activation": "linear"}, {"activation": "shaped-relu"}, {"residual": 0.5}]
)
def test_corners_are_finite(size, option, rho0):
    report = depth_report(*size, rho0=rho0, **option)
    assert np.isfinite([report.norm_spread, report.growth, *report.correlation.values()]).all()
    assert list(report.correlation.values()) == sorted(report.correlation.values())


@pytest.mark.parametrize(
    ("options", "code", "argument", "words"),
    [
        ({"width": 0, "depth": 1}, "invalid-argument", "width", "number, 1"),
        ({"width": 1, "depth": -1}, "invalid-argument", "depth", ""),
        ({"width": 1, "depth": 1, "activation": "reluu"}, "unknown-name", "activation", ""),
        ({"width": 1, "depth": 1, "rho0": 2}, "invalid-argument", "rho0", ""),
        ({"width": 1, "depth": 1, "residual": -1.0}, "invalid-argument", "residual", "above 0"),
        (
            {"width": 9, "depth": 2000, "activation": "linear", "residual": 1.0},
            "dead-network",
            "depth",
            "2000 layers",
        ),
    ],
)
def test_invalid_arguments_of_reports(options, code, argument, words):
    with refuses(code, argument=argument) as caught:
        depth_report(**options)
    assert words in str(caught.value)


SMALL = [
    ({"width": 5, "depth": 1}, "relu", {}),
    ({"width": 10, "depth": 10}, "relu", {}),
    (
        {"width": 200, "depth": 3, "activation": "shaped-relu", "rho0": -1.0},
        "shaped-relu",
        {"c_minus": -((200 / 3) ** 0.5)},
    ),
    ({"width": 8, "depth": 4, "activation": "linear"}, "linear", {}),
    ({"width": 40, "depth": 4, "residual": True}, "resnet", {}),
]


@pytest.mark.parametrize(("setting", "kind", "options"), SMALL)
def test_small_networks_are_sampled(setting, kind, options):
    report, rho0 = depth_report(**setting), setting.get("rho0", 0.3)
    sizes = setting["width"], setting["depth"]
    V = sample_network(kind, [[1, rho0], [rho0, 1]], *sizes, samples=8000, **options)
    V = V[(V[:, 0, 0] > 0) & (V[:, 1, 1] > 0)]
    assert np.log(V[:, 0, 0]).std() == pytest.approx(report.norm_spread, rel=0.06)
    quantiles = np.quantile(correlation(V)[:, 0, 1], list(report.correlation))
    np.testing.assert_allclose(list(report.correlation.values()), quantiles, atol=0.04)
    assert report.caveat == ""


def test_verdicts_depend_on_the_start():
    assert depth_report(10**6, 1, "linear", rho0=0.995).regime == "gaussian"
    near = depth_report(10**6, 1, rho0=0.999)
    assert (near.regime, near.remedies) == ("gaussian", ())
    assert "sample_network is exact" in str(near)
    assert depth_report(100, 60, residual=True, rho0=0.99).remedies == ()
    assert hash(near) == hash(depth_report(10**6, 1, rho0=0.999))


@pytest.mark.parametrize(
    ("setting", "code", "argument", "words"),
    [
        ({"width": 1, "depth": 10**400}, "invalid-argument", "depth", "at most"),
        ({"width": 10, "depth": 10, "residual": 1e200}, "invalid-argument", "residual", ""),
        ({"width": 10, "depth": 10, "rho0": [0.1, 0.2]}, "invalid-argument", "rho0", ""),
    ],
)
def test_extreme_arguments_are_refused(setting, code, argument, words):
    with refuses(code, argument=argument) as caught:
        depth_report(**setting)
    assert words in str(caught.value)


def test_smooth_activations_are_sampled():
    """Against the sampler that forms no weights either, but in torch, for phi itself: p = 0."""
    report = depth_report(100, 25, "tanh")
    V = sample_network("shaped", [[1, 0.3], [0.3, 1]], 100, 25, 4096, phi="tanh", a=1.0, p=0.0)
    rho = V[:, 0, 1] / np.sqrt(V[:, 0, 0] * V[:, 1, 1])
    assert list(report.correlation.values()) == pytest.approx(
        list(np.quantile(rho, [0.05, 0.5, 0.95])), abs=0.05
    )
    assert report.norm_spread == pytest.approx(np.log(V[:, 0, 0]).std(), rel=0.1)
    wide = depth_report(1_000_000, 25, "tanh")
    assert wide.norm_spread == pytest.approx(report.norm_spread / 100, rel=0.15)
    assert wide.caveat == ""


def with_weights(phi, width, depth, beta, samples):
    """Return kernels of sampled networks with weights, for two inputs of correlation .3."""
    rng, found = np.random.default_rng(1), []
    g = rng.standard_normal(10**6)
    gain = 1.0 if beta else np.mean(phi(g) ** 2) ** -0.5
    for _ in range(samples):
        z = rng.standard_normal((width, 2)) @ np.linalg.cholesky([[1, 0.3], [0.3, 1]]).T
        for _ in range(depth if beta else depth - 1):
            moved = gain * rng.standard_normal((width, width)) / width**0.5 @ phi(z)
            z = z + beta * moved if beta else moved
        x = z if beta else gain * phi(z)
        found.append(x.T @ x / width)
    return np.array(found)


def silu(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("activation", "phi", "residual"),
    [
        ("silu", silu, None),
        ("silu", silu, True),
        ("tanh", np.tanh, 0.3),
        ("linear", lambda x: x, True),
    ],
)
def test_reports_agree_with_networks_that_have_weights(activation, phi, residual):
    width, depth = 60, 16
    report = depth_report(width, depth, activation, residual)
    V = with_weights(phi, width, depth, report.residual, 300)
    assert np.log(V[:, 0, 0]).std() == pytest.approx(report.norm_spread, rel=0.15)
    quantiles = np.quantile(correlation(V)[:, 0, 1], list(report.correlation))
    np.testing.assert_allclose(list(report.correlation.values()), quantiles, atol=0.07)
    assert report.caveat == ""


@pytest.mark.parametrize("activation", ["gelu", "erf"])
def test_few_neurons_around_exact_means_have_the_law_of_many(activation):
    """With gelu, lengths and correlations move away from 1, so an error of the noise would grow."""
    phi, rho = get(activation), 0.9
    whole = sampled(normalized(phi), None, 1200, 12, rho)
    few = sampled_wide(phi, 1200, 12, rho)
    for a, b in zip(whole, few, strict=True):
        assert a.std() == pytest.approx(b.std(), rel=0.15)
        assert abs(a.mean() - b.mean()) < 4 * a.std() * (1 / a.size + 1 / b.size) ** 0.5


def test_wide_residual_networks_come_to_their_recursion():
    wide, wider = (depth_report(n, 16, "tanh", residual=True, rho0=0.5) for n in (400, 10**7))
    assert "first order" in wider.caveat
    assert wider.norm_spread == pytest.approx(wide.norm_spread * (400 / 10**7) ** 0.5, rel=0.1)
    assert wider.correlation[0.5] == pytest.approx(wide.correlation[0.5], abs=0.02)


@pytest.mark.parametrize(
    ("options", "code", "argument", "words"),
    [
        ({"activation": "gelo"}, "unknown-name", "activation", "mean 'gelu'"),
        ({"depth": 3000}, "invalid-argument", "depth", "at most"),
    ],
)
def test_invalid_arguments_with_other_activations(options, code, argument, words):
    with refuses(code, argument=argument) as caught:
        depth_report(**{"width": 10, "depth": 10, "activation": "gelu"} | options)
    assert words in str(caught.value)
