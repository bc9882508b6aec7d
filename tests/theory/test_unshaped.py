"""Unshaped ReLU networks: the recursion of infinite width, the Markov chain, and the SDE around the
fixed point."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refuses

from orderone.theory import UnshapedCorrelationSDE, limits

SDE = UnshapedCorrelationSDE()


def test_reference_of_infinite_width():
    q = limits.infinite_width_q(0.3, 10_000)
    assert q[149] == pytest.approx(37.64338188422644, abs=3.8e-5)
    assert q[-1] == pytest.approx(44.243792942363285, abs=4.5e-5)
    assert pytest.approx(44.41321980490211, abs=1e-12) == limits.Q_INFINITY
    assert np.all(np.diff(q) > 0)
    assert q[-1] < limits.Q_INFINITY
    assert not limits.infinite_width_q(1.0, 5).any()


def test_reference_of_the_sde():
    assert SDE.sample(0.3, 1.0, 2**16, 1e-2).mean() == pytest.approx(2.2776432580608357, abs=0.035)
    fine = SDE.sample(0.3, 1.0, 2**15, 1e-3)
    assert fine.mean() == pytest.approx(2.3963050743387813, abs=0.05)


def test_equation_4_7_as_printed_is_refuted():
    """Erratum S3.1: Ito's rule on the printed (4.7) gives the drift -6 where (4.8) has -2."""
    printed = (
        SDE.sample(0.3, paths=4096) - 4.0
    )  # a constant in the drift, over unit time, but for the pull it changes
    chain = np.log(150**2 * limits.correlation_chain(0.3, 150, 150, 4096))
    assert limits.ks(chain, SDE.sample(0.3, paths=4096)) < 0.06
    assert limits.ks(chain, printed) > 0.3


def test_the_exact_scheme_has_the_exact_mean():
    for T in (0.1, 1.0):
        u = np.exp(-SDE.sample(0.3, T, 2**16, T / 200, scheme="exact") / 2)
        assert u.mean() == pytest.approx(SDE.mean_inverse_root(T), abs=4 * u.std() / 256)
    # at the start the limit of infinite width
    early = SDE.sample(0.3, 1e-6, 256, 1e-8, scheme="exact")
    assert np.exp(early) == pytest.approx(limits.Q_INFINITY, rel=0.05)


def test_euler_tends_to_the_exact_solution():
    exact = SDE.sample(0.3, 1.0, 2**14, 1e-3, scheme="exact", seed=1)
    distances = [
        limits.wasserstein(SDE.sample(0.3, 1.0, 2**14, dt), exact) for dt in (0.1, 0.02, 0.004)
    ]
    assert distances[0] > 1.5 * distances[1] > 1.5 * distances[2]
    assert limits.ks(SDE.sample(0.3, 1.0, 2**14, 1e-3, seed=2), exact) < 0.025


def test_the_dependence_on_the_start_is_of_order_dt():
    """Errata: mean r 2.08, 2.25, 2.32 for 1 - rho_0 = .1, .7, 2 at dt = 1e-2."""
    starts = [0.9, 0.3, -1.0]
    coarse, fine = SDE.sensitivity(starts), SDE.sensitivity(starts, dt=1e-3, paths=2048)
    assert coarse == pytest.approx([2.08, 2.25, 2.32], abs=0.06)
    assert np.ptp(fine) < 0.2 * np.ptp(coarse)
    assert np.array_equal(SDE.sample(0.9, scheme="exact"), SDE.sample(-1.0, scheme="exact"))


def test_seeds_devices_and_dtypes():
    assert np.array_equal(SDE.sample(paths=64, seed=3), SDE.sample(paths=64, seed=3))
    assert not np.array_equal(SDE.sample(paths=64, seed=3), SDE.sample(paths=64, seed=4))
    r = SDE.sample(torch.tensor(0.3), paths=2000)
    assert isinstance(r, torch.Tensor)
    assert r.dtype == torch.float32
    assert float(r.mean()) == pytest.approx(2.28, abs=0.2)
    gap = limits.correlation_chain(torch.tensor(0.3, dtype=torch.float64), 100, 100, 50)
    assert gap.dtype == torch.float64


def test_trivial_results():
    assert np.all(SDE.sample(1.0, paths=5) == -np.inf)
    assert SDE.sample(0.3, T=0, paths=3) == pytest.approx(np.log(0.7))
    assert not limits.correlation_chain(1.0, 50, 50, 8).any()
    assert np.all(limits.correlation_chain(0.25, 50, 0, 8) == 0.75)


@pytest.mark.parametrize(
    ("options", "code", "argument", "words"),
    [
        ({"rho0": 1.5}, "invalid-argument", "rho0", "correlation"),
        ({"rho0": float("nan")}, "invalid-argument", "rho0", "correlation"),
        ({"rho0": [0.1, 0.2]}, "invalid-argument", "rho0", "correlation"),
        ({"rho0": "x"}, "invalid-argument", "rho0", "array"),
        ({"dt": 2.0}, "invalid-argument", "dt", "= 1"),
        ({"dt": 0}, "invalid-argument", "dt", "above 0"),
        ({"T": -1}, "invalid-argument", "T", "least 0"),
        ({"paths": 0}, "invalid-argument", "paths", "number, 1"),
        ({"scheme": "milstein"}, "unknown-name", "scheme", ""),
        ({"seed": -1}, "invalid-argument", "seed", ""),
    ],
)
def test_wrong_arguments(options, code, argument, words):
    with refuses(code, argument=argument) as caught:
        SDE.sample(**options)
    assert words in str(caught.value)


@settings(deadline=None)
@given(
    st.floats(-1, 0.999999),
    st.floats(1e-3, 50),
    st.integers(1, 40),
    st.sampled_from(["euler", "exact"]),
)
def test_no_start_and_no_step_gives_a_nan(rho0, T, number, scheme):
    assert not np.isnan(SDE.sample(rho0, T, 20, T / number, scheme=scheme)).any()


@settings(deadline=None)
@given(st.floats(-1, 1), st.integers(1, 20), st.integers(1, 30))
def test_the_chain_stays_among_correlations(rho0, width, depth):
    gap = limits.correlation_chain(rho0, width, depth, 20)
    assert np.all((gap >= 0) & (gap <= 2))


def test_the_exact_scheme_at_large_times():
    """X = t - sqrt(2) B rules the integral: r / t -> -2, far beyond what exp can hold."""
    T = 2000.0
    r = UnshapedCorrelationSDE().sample(0.3, T, 500, 1.0, scheme="exact")
    assert r.mean() / T == pytest.approx(-2, abs=0.02)
    assert r.std() == pytest.approx(np.sqrt(8 * T), rel=0.1)
