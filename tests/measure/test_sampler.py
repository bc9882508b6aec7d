"""Networks without weights, compared with networks with weights, limits, reference numbers and
exact laws."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from support.errors import refuses

import orderone as o1
from orderone.core.covariances import correlation
from orderone.measure import compare_with_limit, ode_rate, unshaped_rate, weak_order
from orderone.theory import CovarianceSDE, UnshapedCorrelationSDE, limits, resnet_ode

V0 = np.array([[1.0, 0.3], [0.3, 1.0]])


def rho(V: np.ndarray) -> np.ndarray:
    return correlation(V)[..., 0, 1]


def same_law(x: np.ndarray, y: np.ndarray) -> float:
    """The p-value of the Kolmogorov-Smirnov test."""
    result: Any = stats.ks_2samp(x, y)
    return result.pvalue


def with_weights(
    kind: str, V: np.ndarray, width: int, depth: int, samples: int, **options
) -> np.ndarray:
    """S3 (2.1) and (2.12), written out, in double precision."""
    g = torch.Generator().manual_seed(1)
    m = len(V)
    L = torch.as_tensor(np.linalg.cholesky(V + 1e-14 * np.eye(m)))

    def weights(columns: int) -> torch.Tensor:
        return torch.randn(samples, width, columns, dtype=torch.float64, generator=g)

    z = weights(m) @ L.T  # W_in x / sqrt(n_in) for inputs with x = L
    if kind == "resnet":
        for _ in range(depth):
            z = z + weights(width) @ z.relu() / (depth * width) ** 0.5
        return (z.mT @ z / width).numpy()
    if kind == "shaped-smooth":
        shaped = limits.ShapedSmooth(options["phi"], options["a"])
        phi, c = shaped.at(width, options["p"]), shaped.normalizer(width, options["p"])
    else:
        slopes = {"relu": (1.0, 0.0), "linear": (1.0, 1.0)}.get(kind) or limits.ShapedReLU(
            options["c_plus"], options["c_minus"]
        ).slopes(width, options["p"])
        phi, c = (
            (lambda x: slopes[0] * x.clamp(min=0) + slopes[1] * x.clamp(max=0)),
            2 / (slopes[0] ** 2 + slopes[1] ** 2),
        )
    x = phi(z)
    for _ in range(depth - 1):
        x = phi((c / width) ** 0.5 * weights(width) @ x)
    return (c / width * x.mT @ x).numpy()


KINDS = [
    ("relu", {}),
    ("shaped-relu", {"c_plus": 0.5, "c_minus": -1.0, "p": 0.5}),
    (
        "shaped-relu",
        {"c_plus": -9.0, "c_minus": 2.0, "p": 0.3},
    ),  # the slope of the positive side is the smaller one
    ("shaped-smooth", {"phi": "expm1", "a": 4.0, "p": 0.5}),
    ("linear", {}),
    ("resnet", {}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_networks_with_weights_have_the_same_law(kind, options):
    V = np.array([[1.0, 0.3, -0.5], [0.3, 2.0, 0.4], [-0.5, 0.4, 0.7]])
    width, depth, samples = 12, 5, 4000
    real = with_weights(kind, V, width, depth, samples, **options)
    found = o1.sample_network(kind, V, width, depth, samples, **options)
    assert found.shape == (samples, 3, 3)
    pairs = [(0, 0), (1, 1), (0, 1), (1, 2)]
    values = [same_law(real[:, i, j], found[:, i, j]) for i, j in pairs]
    for i, j in ((0, 1), (0, 2)):
        values.append(same_law(correlation(real)[:, i, j], correlation(found)[:, i, j]))
    values.append(same_law(np.linalg.det(real), np.linalg.det(found)))
    assert min(values) > 1e-3


def test_many_inputs():
    X = np.random.default_rng(0).standard_normal((12, 30))
    V = X @ X.T / 30
    real, found = with_weights("relu", V, 16, 3, 3000), o1.sample_network("relu", V, 16, 3, 3000)
    assert same_law(real[:, 0, 11], found[:, 0, 11]) > 1e-3
    assert same_law(np.linalg.slogdet(real)[1], np.linalg.slogdet(found)[1]) > 1e-3


def test_another_distribution_is_detected():
    """The case that must fail: slopes that differ by a tenth."""
    real = with_weights("shaped-relu", V0, 12, 5, 4000, c_plus=0.0, c_minus=-1.0, p=0.5)
    found = o1.sample_network("shaped-relu", V0, 12, 5, 4000, c_plus=0.0, c_minus=-1.8)
    assert same_law(rho(real), rho(found)) < 1e-3


def test_reference_of_unshaped_networks():
    V = o1.sample_network("relu", V0, width=150, depth=150, samples=8192)
    r = np.log(150**2 * (1 - rho(V)))
    assert r.mean() == pytest.approx(2.1132980402828427, abs=0.15)
    assert r.std() == pytest.approx(1.8876140266203214, abs=0.1)
    assert limits.ks(r, UnshapedCorrelationSDE().sample(0.3)) < 0.06


def test_reference_of_shaped_networks():
    for width, name, value in ((150, "mean", 0.3579337192264501), (300, "var", 0.3489297407412992)):
        found = rho(
            o1.sample_network("shaped-relu", V0, width, width, 2048 if width == 300 else 8192)
        )
        assert getattr(found, name)() == pytest.approx(value, abs=0.02)
        if width == 150:
            assert limits.ks(found, rho(CovarianceSDE().sample(V0))) < 0.03


def test_residual_networks_follow_their_equation():
    V = o1.sample_network("resnet", V0, width=1000, depth=100, samples=200)
    error = 4 * V.std(0) / 200**0.5
    assert np.all(np.abs(V.mean(0) - resnet_ode(V0, 1.0)) < error + 0.01)
    assert abs(V[:, 0, 0].mean() - 1) > 0.5  # erratum S3.3: not the shaped network


def test_linear_networks_are_products_of_wishart_matrices():
    width, depth = 7, 4
    V = o1.sample_network("linear", [[2.0]], width, depth, 20_000)[:, 0, 0] / 2
    assert V.mean() == pytest.approx(1, abs=0.05)
    assert (V**2).mean() == pytest.approx((1 + 2 / width) ** depth, rel=0.1)
    thin = o1.sample_network("linear", np.eye(4), 2, 3, 50)
    assert np.all(np.linalg.eigvalsh(thin)[:, 1] < 1e-12)  # rank two at most
    assert np.all(np.linalg.eigvalsh(thin)[:, 2] > 0)


def test_all_layers():
    every = o1.sample_network("relu", V0, 20, 6, 500, layers=True)
    assert every.shape == (500, 6, 2, 2)
    np.testing.assert_allclose(every[:, -1], o1.sample_network("relu", V0, 20, 6, 500))
    first = o1.sample_network("relu", V0, 20, 1, 500)
    np.testing.assert_allclose(every[:, 0], first)
    assert np.all(np.diff(np.median(rho(every), axis=0)) > 0)
    for kind in ("shaped", "linear", "resnet"):
        assert o1.sample_network(kind, V0, 5, 3, 10, layers=True).shape == (10, 3, 2, 2)


def test_single_precision_keeps_small_gaps():
    """Two inputs at 1 - rho = 1e-9: single and double precision give one law of log(1 - rho)."""
    V = np.array([[1.0, 1 - 1e-9], [1 - 1e-9, 1.0]])
    logs = []
    for dtype in ("float32", "float64"):
        found = o1.sample_network("shaped-relu", V, 50, 20, 3000, dtype=dtype)
        determinant = found[:, 0, 0] * found[:, 1, 1] - found[:, 0, 1] ** 2
        logs.append(np.log(determinant / (found[:, 0, 0] * found[:, 1, 1])))
    assert same_law(logs[0], logs[1]) > 1e-3


def test_special_inputs():
    for kind in ("relu", "shaped-relu", "shaped", "linear", "resnet"):
        same = o1.sample_network(kind, np.full((2, 2), 0.7), 30, 10, 20)
        np.testing.assert_allclose(same[:, 0, 1], same[:, 0, 0], rtol=1e-5)
        zero = o1.sample_network(kind, [[0.0, 0.0], [0.0, 1.0]], 30, 10, 20)
        assert not zero[:, 0].any()
        assert np.all(zero[:, 1, 1] > 0)
        one = o1.sample_network(kind, [[2.0]], 30, 10, 20)
        assert one.shape == (20, 1, 1)
    wild = o1.sample_network("shaped", V0 * 1e3, 5, 10, 20, phi="expm1")
    assert not np.isnan(wild).any()
    assert np.isinf(wild).any()
    narrow = o1.sample_network("relu", V0, 1, 30, 100)
    assert np.isfinite(narrow).all()
    assert not narrow.any()  # one dead unit ends a network of width one
    for kind, scale in (("relu", 1e200), ("resnet", 1e200), ("resnet", 1e-200)):
        scaled = o1.sample_network(kind, V0 * scale, 30, 10, 20)
        np.testing.assert_allclose(
            scaled / scale, o1.sample_network(kind, V0, 30, 10, 20), rtol=1e-12
        )


def test_seeds_memory_and_tensors():
    def sample(**options):
        return o1.sample_network("relu", V0, 40, 5, 300, **options)

    assert np.array_equal(sample(seed=1), sample(seed=1))
    assert not np.array_equal(sample(seed=1), sample(seed=2))
    state = torch.get_rng_state()
    small = sample(memory=3 * 40 * 2 * 4 * 50)  # chunks of fifty
    assert torch.equal(torch.get_rng_state(), state)
    assert len(np.unique(small[:, 0, 0])) == 300  # no chunk repeats another
    assert same_law(small[:, 0, 0], sample()[:, 0, 0]) > 1e-3
    calls = []
    sample(memory=3 * 40 * 2 * 4 * 100, progress=lambda *a: calls.append(a[:2]))
    assert calls == [(100, 300), (200, 300), (300, 300)]
    tensor = o1.sample_network("relu", torch.tensor(V0).float(), 10, 5, 30)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == torch.float32
    assert isinstance(o1.sample_network("relu", V0, 10, 5, 30, device="cpu"), np.ndarray)
    custom = o1.sample_network("shaped", V0, 10, 5, 30, phi=torch.tanh, a=2.0)
    np.testing.assert_allclose(
        custom, o1.sample_network("shaped", V0, 10, 5, 30, phi="tanh", a=2.0), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "gelu"}, "kind of network: .*relu, shaped-relu, shaped-smooth, shaped, linear"),
        ({"V0": [[1, 2], [2, 1]]}, "positive semidefinite"),
        ({"V0": [1.0]}, "V0: .*covariance"),
        ({"width": 0}, "width: .* 0"),
        ({"depth": 0}, "depth: .* 0"),
        ({"samples": 0}, "samples: .* 0"),
        ({"kind": "shaped-relu", "p": -0.1}, r"p: .*-0\.1"),
        ({"kind": "shaped-relu", "c_plus": -1, "p": 0}, "c_plus, c_minus: .*width 150"),
        ({"kind": "shaped", "phi": torch.cos}, r"phi\(0\)"),
        ({"kind": "shaped", "a": 0}, "a: "),
        ({"dtype": "float16"}, "dtype: .*float32, float64.*'float16'"),
        ({"memory": 0}, "memory: .* 0"),
        ({"seed": -1}, "seed: .* -1"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        o1.sample_network(**{"samples": 2, **options})


def test_comparisons():
    (r,) = compare_with_limit("relu", 60, 60, samples=2000)
    assert r.quantity.startswith("r = ")
    assert [d.name for d in r.distances] == ["ks", "wasserstein", "energy"]
    assert r.distances[0].value < 0.12
    linear = compare_with_limit("linear", 60, 30, samples=2000)
    assert all(c.distances[0].low < 0.03 for c in linear)
    assert compare_with_limit("relu", 3, 12, samples=500)[0].lost > 0
    with refuses("signals-lost", argument="depth"):
        compare_with_limit("relu", 1, 60, samples=50)
    with refuses("invalid-argument", argument="rho0"):
        compare_with_limit("relu", rho0=1.0)


def test_convergence_to_the_ode():
    """n^{p - 1/2}, S3 Proposition 3.4 with erratum S3.5: depth n^{2p}."""
    found = ode_rate(0.25, widths=(64, 256, 1024), samples=400)
    assert found.expected == -0.25
    assert found.fit.exponent == pytest.approx(-0.25, abs=0.08)
    with refuses("invalid-argument", argument="p"):
        ode_rate(0.5)


@pytest.mark.parametrize(
    ("scheme", "order", "other", "paths"),
    [("geometric", 2.0, 1.0, 2**19), ("euler", 1.0, 2.0, 2**15)],
)
def test_integrators_have_their_order_and_no_other(scheme, order, other, paths):
    found = weak_order(scheme, paths=paths)
    assert order in found.fit
    assert other not in found.fit
    assert found.fit.high - found.fit.low < 0.6
    assert f"expected +{order:.2f}" in str(found)


@pytest.mark.slow
def test_slow_rates():
    assert weak_order("geometric", seed=5).fit.exponent == pytest.approx(2, abs=0.15)
    assert weak_order("euler", seed=5).fit.exponent == pytest.approx(1, abs=0.1)
    assert unshaped_rate().fit.exponent == pytest.approx(-1, abs=0.3)


@pytest.mark.slow
def test_distance_to_the_unshaped_sde_falls_with_width():
    sde = UnshapedCorrelationSDE().sample(0.3, 1.0, 2**15, 1e-3, scheme="exact")
    found = []
    for n in (50, 150, 600):
        V = o1.sample_network("relu", V0, n, n, 4096)
        found.append(limits.ks(np.log(n**2 * (1 - rho(V))), sde))
    assert found[0] > found[1] > found[2]


def test_orders_and_rates_are_checked():
    with refuses("unknown-name", argument="scheme"):
        weak_order("runge")
    assert weak_order("Euler", steps=(0.05, 0.025, 0.0125), paths=64).expected == 1
    with pytest.raises(ValueError, match="widths: "):
        ode_rate(widths="a")
    for device in ("foo", "cuda:99"):
        with refuses("invalid-argument", argument="device"):
            o1.sample_network(width=2, depth=1, samples=1, device=device)
    with refuses("wrong-type", argument="progress"):
        o1.sample_network(width=2, depth=1, samples=1, progress=3)  # type: ignore[arg-type]
