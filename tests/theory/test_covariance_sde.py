"""The covariance SDE: reference, backward equation, moments in closed form, weak order, and
covariances that stay so."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refuses

from orderone.core.covariances import correlation
from orderone.theory import CovarianceSDE, limits

V0 = np.array([[1.0, 0.3], [0.3, 1.0]])
SHAPED = CovarianceSDE()


def rho(V: np.ndarray) -> np.ndarray:
    return correlation(V)[:, 0, 1]


def test_reference():
    found = rho(SHAPED.sample(V0, paths=2**16))
    assert found.mean() == pytest.approx(0.34660458379686465, abs=0.01)
    assert found.var() == pytest.approx(0.3498043658594695, abs=0.01)


@pytest.mark.parametrize("c", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("start", [-0.8, 0.3])
def test_correlations_obey_their_backward_equation(c, start):
    found = rho(
        CovarianceSDE(c_plus=0.5, c_minus=0.5 - c).sample(
            [[2, 2 * start], [2 * start, 2]], paths=2**15, dt=0.02
        )
    )
    for g in (lambda x: x, np.square):
        exact = limits.correlation_mean(g, start, 1.0, 0.5, 0.5 - c)
        assert g(found).mean() == pytest.approx(exact, abs=4 * g(found).std() / 2**7.5)


def test_one_input_is_exactly_lognormal():
    V = SHAPED.sample([[3.0]], T=0.7, paths=2**15, dt=0.7)
    logs = np.log(V[:, 0, 0] / 3)
    assert logs.mean() == pytest.approx(-0.7, abs=4 * logs.std() / 2**7.5)
    assert logs.var() == pytest.approx(1.4, rel=0.04)


def test_linear_networks_have_these_second_moments():
    """E V stays; x = E V_12^2 and y = E V_11 V_22 obey x' = x + y, y' = 2 x."""
    T = 0.25
    V = CovarianceSDE("linear").sample(V0, T, 2**17, T / 8)
    generator = np.array([[1.0, 1.0], [2.0, 0.0]])
    values, vectors = np.linalg.eig(generator * T)
    exact = (vectors @ np.diag(np.exp(values)) @ np.linalg.inv(vectors)) @ [0.09, 1.0]
    for name, sample, expected in (
        ("V", V[:, 0, 1], 0.3),
        ("x", V[:, 0, 1] ** 2, exact[0]),
        ("y", V[:, 0, 0] * V[:, 1, 1], exact[1]),
    ):
        assert sample.mean() == pytest.approx(expected, abs=4 * sample.std() / 2**8.5), name


def test_noise_has_the_covariance_sigma():
    """One short step of either scheme, three inputs, all pairs of pairs."""
    X = np.random.default_rng(1).standard_normal((3, 6))
    V, dt = X @ X.T / 6, 1e-4
    a, b = np.triu_indices(3)
    for scheme in ("geometric", "euler"):
        moved = CovarianceSDE("linear").sample(V, dt, 2**16, dt, scheme=scheme)[:, a, b]
        found = np.cov(moved.T) / dt
        np.testing.assert_allclose(
            found, limits.diffusion(V), atol=0.05 * np.abs(limits.diffusion(V)).max()
        )


def test_metric_reference_and_the_full_quadratic_form():
    """Erratum S3.7."""
    V, A, B = (
        [[1.2, 0.4], [0.4, 0.9]],
        np.array([[0.3, -0.2], [-0.2, 0.7]]),
        np.array([[1.0, 0.5], [0.5, -0.4]]),
    )
    assert float(limits.metric(V, A, B)) == pytest.approx(-0.4089083175803402, abs=1e-12)
    upper = np.triu_indices(2)
    inverse = np.linalg.inv(limits.diffusion(V))
    assert A[upper] @ inverse @ B[upper] == pytest.approx(-0.4089083175803402, abs=1e-12)
    assert np.diagonal(inverse) @ (A[upper] * B[upper]) != pytest.approx(-0.4089, abs=0.1)


def test_the_geometric_scheme_is_of_second_order():
    """Long steps, so that the error of E rho^2 stands out from its noise."""
    exact = limits.correlation_mean(np.square, -0.5, 1.0, 0.0, -2.0)
    sde, start = CovarianceSDE(c_minus=-2.0), [[1, -0.5], [-0.5, 1]]
    errors = [
        abs((rho(sde.sample(start, 1.0, 2**18, dt)) ** 2).mean() - exact) for dt in (0.5, 0.25)
    ]
    assert 3 < errors[0] / errors[1] < 6
    euler = abs((rho(sde.sample(start, 1.0, 2**13, 0.125, scheme="euler")) ** 2).mean() - exact)
    assert euler > 10 * errors[0]


def test_antithetic_paths_come_in_pairs():
    """One input is exp(sqrt(2) B - t): the product of a pair is known."""
    V = CovarianceSDE("linear").sample([[1.0]], 0.5, 2**16 + 1, 0.25, antithetic=True)[:-1, 0, 0]
    np.testing.assert_allclose(V[::2] * V[1::2], np.exp(-1.0), rtol=1e-12)
    options = {"paths": 2**12, "dt": 0.1, "antithetic": True}
    V = CovarianceSDE(c_plus=4.0).sample(V0, 0.2, **options)
    assert np.array_equal(V, CovarianceSDE(c_plus=4.0).simulate(V0, 0.2, **options).V)
    pairs = rho(V).reshape(-1, 2)
    assert np.corrcoef(pairs.T)[0, 1] < -0.5


def test_euler_projects_and_says_how_often():
    run = SHAPED.simulate(V0, paths=512, dt=0.1, scheme="euler")
    assert run.projected > 0
    assert (run.steps, run.dt) == (10, pytest.approx(0.1))
    assert np.linalg.eigvalsh(run.V).min() > -1e-12
    assert SHAPED.simulate(V0, paths=512, dt=0.1).projected == 0


def test_steps_that_are_too_large_are_refused():
    with refuses("step-too-large", argument="dt"):
        CovarianceSDE(c_plus=1e4).sample(V0, paths=5)
    assert valid(CovarianceSDE(c_plus=100.0).sample(V0, paths=50))


def test_smooth_drift_is_equation_2_9():
    """Against the exact covariance of one shaped layer, n (c E phi phi - V), for functions with
    phi'' and phi'''."""
    V = np.array([[1.3, 0.5], [0.5, 0.8]])
    n, (x, w) = 10**7, np.polynomial.hermite_e.hermegauss(60)
    L = np.linalg.cholesky(V)
    z1, z2 = L[0, 0] * x[:, None] + 0 * x, L[1, 0] * x[:, None] + L[1, 1] * x[None, :]
    for phi, name in (
        (np.tanh, "tanh"),
        (np.expm1, "expm1"),
        (lambda x: x + x**2 / 3 - x**3 / 5, None),
    ):
        layer = limits.ShapedSmooth(phi, 1.5)
        f = layer.at(n)
        moments = [f(z1) ** 2, f(z1) * f(z2), f(z2) ** 2]
        c = layer.normalizer(n)
        exact = [
            n * (c * float(w @ m @ w / (2 * np.pi)) - v)
            for m, v in zip(moments, (1.3, 0.5, 0.8), strict=True)
        ]
        b = CovarianceSDE("shaped-smooth", phi=name or phi, a=1.5).drift.rate(V[:, :, None])[..., 0]
        assert [b[0, 0], b[0, 1], b[1, 1]] == pytest.approx(exact, abs=2e-3)


def test_smooth_flow_solves_its_equation():
    for name in ("tanh", "expm1"):
        drift = CovarianceSDE("shaped-smooth", phi=name, a=2.0).drift
        fine, coarse = V0[:, :, None].copy(), V0[:, :, None].copy()
        for _ in range(2000):
            fine = fine + drift.rate(fine) / 2000
        for _ in range(20):
            coarse = drift.flow(coarse, 1 / 20)
        np.testing.assert_allclose(np.tril(coarse[..., 0]), np.tril(fine[..., 0]), atol=5e-4)


def test_smooth_drifts_that_blow_up_are_stopped():
    run = CovarianceSDE("shaped-smooth", phi="expm1", a=0.5).simulate(V0, T=3.0, paths=500)
    assert run.stopped > 0
    assert np.all(np.isfinite(run.V))
    assert np.linalg.eigvalsh(run.V)[:, 0].min() > -1e-8
    assert CovarianceSDE("shaped-smooth", phi="tanh").simulate(V0, paths=500).stopped == 0
    large = CovarianceSDE("shaped-smooth", phi="tanh").simulate(V0 * 1e6, paths=500)
    assert large.stopped == 0
    assert large.V[:, 0, 0].max() < 10
    for scheme in ("geometric", "euler"):
        wild = CovarianceSDE("shaped-smooth", phi="expm1", a=0.3).simulate(
            V0.astype(np.float32) * 1e5, scheme=scheme
        )
        assert np.isfinite(wild.V).all()


def valid(V: np.ndarray, tolerance: float = 1e-10) -> bool:
    size = np.abs(V).max(axis=(1, 2)) + 1e-300
    scale = np.sqrt(V[:, 0, 0] * V[:, -1, -1])
    fine = np.isfinite(V).all() and np.array_equal(V, np.swapaxes(V, 1, 2))
    return bool(
        fine
        and (np.linalg.eigvalsh(V / size[:, None, None])[:, 0] > -tolerance).all()
        and (np.abs(V[:, 0, -1]) <= scale * (1 + 1e-15)).all()
    )


def starts(m: int, number: int, seed: int, rank: int, spread: float) -> np.ndarray:
    """Covariances of `rank` features, on scales that differ by up to 10^spread: singular where rank
    < m."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((number, m, rank)) * 10 ** rng.uniform(-spread, spread, (number, m, 1))
    near = rng.random((number, 1, 1)) < 0.3  # two inputs that almost coincide
    X[:, -1:] = np.where(near, X[:, :1] * (1 + 1e-9), X[:, -1:])
    return X @ np.swapaxes(X, 1, 2) / rank


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
    rank=st.integers(1, 7),
    spread=st.floats(0, 3),
    T=st.floats(1e-3, 20),
    number=st.integers(1, 12),
    c=st.floats(-5, 5),
    scheme=st.sampled_from(["geometric", "euler"]),
)
def test_paths_are_covariances_from_any_start(m, seed, rank, spread, T, number, c, scheme):
    V = CovarianceSDE(c_plus=c).sample(
        starts(m, 50, seed, rank, spread), T, dt=T / number, seed=seed, scheme=scheme
    )
    assert valid(V)


@pytest.mark.slow
def test_a_million_starts():
    for m, rank in ((1, 1), (2, 1), (2, 2), (3, 2), (4, 5)):
        for seed in range(8):
            assert valid(
                SHAPED.sample(starts(m, 25_000, seed, rank, 3.0), 1.0, dt=0.1, seed=seed)
            ), (m, rank, seed)


def test_special_inputs():
    same = SHAPED.sample(np.full((2, 2), 0.7), paths=100)
    np.testing.assert_allclose(same[:, 0, 1], same[:, 0, 0], rtol=1e-6)
    zero = SHAPED.sample([[0.0, 0.0], [0.0, 1.0]], paths=100)
    assert not zero[:, 0].any()
    assert zero[:, 1, 1].all()
    assert not SHAPED.sample(np.zeros((3, 3)), paths=5).any()
    assert np.array_equal(SHAPED.sample(V0, T=0, paths=3), np.stack([V0] * 3))
    assert valid(SHAPED.sample(V0 * 1e-140, paths=50))
    assert valid(SHAPED.sample(V0 * 1e140, paths=50))
    assert valid(SHAPED.sample(V0, T=300.0, paths=50, dt=1.0))


def test_scale_does_not_matter_to_relus():
    D = np.diag([1e-3, 40.0])
    scaled = SHAPED.sample(D @ V0 @ D, paths=200)
    np.testing.assert_allclose(scaled, D @ SHAPED.sample(V0, paths=200) @ D, rtol=1e-8)


def test_seeds_dtypes_and_tensors():
    assert np.array_equal(
        SHAPED.sample(V0, paths=300, seed=5), SHAPED.sample(V0, paths=300, seed=5)
    )
    assert not np.array_equal(
        SHAPED.sample(V0, paths=300, seed=5), SHAPED.sample(V0, paths=300, seed=6)
    )
    assert SHAPED.sample(V0).shape == (8192, 2, 2)
    single = SHAPED.sample(V0.astype(np.float32), paths=2**14)
    assert single.dtype == np.float32
    assert rho(single).mean() == pytest.approx(0.3416, abs=0.02)
    tensor = SHAPED.sample(torch.tensor(V0), paths=2**14, dt=0.05)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == torch.float64
    assert float(correlation(tensor)[:, 0, 1].mean()) == pytest.approx(0.3416, abs=0.02)
    assert CovarianceSDE("shaped-smooth").sample(
        torch.tensor(V0).float(), paths=10, scheme="euler"
    ).shape == (10, 2, 2)


@pytest.mark.parametrize(
    ("options", "code", "argument", "words"),
    [
        (
            {"activation": "relu"},
            "unknown-name",
            "activation",
            "'relu'",
        ),
        ({"c_plus": float("inf")}, "invalid-argument", "c_plus", ""),
        ({"c_minus": "x"}, "invalid-argument", "c_minus", ""),
        ({"activation": "shaped-smooth", "a": 0}, "invalid-argument", "a", ""),
        (
            {"activation": "shaped-smooth", "phi": "tan"},
            "unknown-name",
            "activation phi",
            "mean 'tanh'",
        ),
        (
            {"activation": "shaped-smooth", "phi": np.cos},
            "invalid-argument",
            "phi",
            "phi'(0)",
        ),
        (
            {"activation": "shaped-smooth", "phi": lambda x: x.nothing},
            "wrong-type",
            "phi",
            "",
        ),
    ],
)
def test_wrong_equations(options, code, argument, words):
    with refuses(code, argument=argument) as caught:
        CovarianceSDE(**options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "code", "argument", "words"),
    [
        ({"V0": [[1, 2], [2, 1]]}, "not-a-covariance", "V0", "positive semidefinite"),
        ({"V0": [[1, 0.5], [0, 1]]}, "not-a-covariance", "V0", "symmetric"),
        ({"V0": np.ones((2, 2, 2, 2))}, "invalid-argument", "V0", "(starts, m, m)"),
        ({"dt": 3.0}, "invalid-argument", "dt", "= 1"),
        ({"T": -1.0}, "invalid-argument", "T", ""),
        ({"paths": 0}, "invalid-argument", "paths", "number, 1"),
        ({"V0": np.stack([V0, V0]), "paths": 3}, "invalid-argument", "paths", "each V0"),
        ({"scheme": "milstein"}, "unknown-name", "scheme", ""),
        ({"seed": 0.5}, "invalid-argument", "seed", ""),
    ],
)
def test_wrong_samples(options, code, argument, words):
    with refuses(code, argument=argument) as caught:
        SHAPED.sample(**{"V0": V0, **options})
    assert words in str(caught.value)


@pytest.mark.parametrize("scheme", ["euler", "geometric"])
@pytest.mark.parametrize("m", [2, 5])
def test_single_precision_gives_covariances_too(scheme, m):
    X = np.random.default_rng(0).standard_normal((m, 2))
    start = (X @ X.T).astype(np.float32)  # singular for m = 5
    V = SHAPED.sample(start, 2.0, 4000, 0.1, scheme=scheme)
    assert V.dtype == np.float32
    V = V.astype(np.float64)
    assert np.all(np.linalg.eigvalsh(V)[:, 0] >= -1e-13 * np.trace(V, axis1=1, axis2=2))
    variance = np.diagonal(V, axis1=1, axis2=2)
    assert np.all(variance[:, :, None] * variance[:, None, :] * (1 + 1e-12) >= V**2)
    alike = SHAPED.sample(np.ones((2, 2), np.float32), 1.0, 100, 0.1, scheme=scheme)
    np.testing.assert_allclose(alike[:, 0, 1], alike[:, 0, 0], rtol=1e-6)


@pytest.mark.parametrize(
    "g", ["x", lambda r: 1 / 0, lambda r: r[:3], lambda r: np.full(r.shape, np.nan), lambda r: "x"]
)
def test_invalid_functions_of_the_correlation_are_refused(g):
    with refuses("invalid-argument", argument="g"):
        limits.correlation_mean(g, 0.3)


def test_step_counts_are_limited():
    for T, dt in ((1e9, 1e-2), (1.0, 1e-12), (1e300, 1e-300)):
        with refuses("invalid-argument", argument="dt") as caught:
            SHAPED.sample(V0, T, 10, dt)
        assert "10000000 steps" in str(caught.value)


def test_starts_of_any_kind():
    start = torch.tensor(V0, requires_grad=True)
    assert not SHAPED.sample(start, paths=3).requires_grad
    for wrong, message in (
        (V0 * 1j, "real numbers"),
        (torch.tensor(V0).to_sparse(), "dense"),
        (V0 * 1e308, ""),
    ):
        if message:
            with refuses("invalid-argument", argument="V0") as caught:
                SHAPED.sample(wrong, paths=3)
            assert message in str(caught.value)
        else:
            assert SHAPED.sample(wrong, 0.01, paths=3, dt=0.01).shape == (3, 2, 2)
    with refuses("invalid-argument", argument="V0") as caught:
        SHAPED.sample(torch.empty(2, 2, device="meta"))
    assert "meta device" in str(caught.value)
