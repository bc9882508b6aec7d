"""Distances between samples: scipy's values, coverage of the intervals, and wrong samples."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.errors import refuses

from orderone.theory.limits import distance, energy, ks, wasserstein

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@settings(deadline=None)
@given(SAMPLES, SAMPLES)
def test_definitions_and_scipy_say_the_same(x, y):
    supremum = max(abs(np.mean(np.array(x) <= p) - np.mean(np.array(y) <= p)) for p in x + y)
    assert ks(x, y) == pytest.approx(supremum, abs=1e-12)
    assert wasserstein(x, y) == pytest.approx(stats.wasserstein_distance(x, y), rel=1e-9, abs=1e-9)
    assert energy(x, y) == pytest.approx(stats.energy_distance(x, y), rel=1e-7, abs=1e-7)


def test_energy_is_its_definition():
    x, y = np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0])

    def mean(a, b):
        return np.abs(a[:, None] - b[None, :]).mean()

    assert energy(x, y) ** 2 == pytest.approx(2 * mean(x, y) - mean(x, x) - mean(y, y))


SHIFTS = {  # of a normal number: distance of the laws
    "ks": lambda a: 2 * stats.norm.cdf(a / 2) - 1,
    "wasserstein": lambda a: a,
    "energy": lambda a: float(np.sqrt(2 * _mean_distance(a) - 2 * _mean_distance(0))),
}


def _mean_distance(a):
    """E abs(N(a, 2))."""
    return 2 / np.pi**0.5 * np.exp(-(a**2) / 4) + a * (1 - 2 * stats.norm.cdf(-a / 2**0.5))


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("kind", list(SHIFTS))
def test_intervals_have_their_coverage(kind, shift):
    """Also of equal laws, and of nearly equal ones, for which the usual bootstrap fails."""
    rng, exact, held, lengths = np.random.default_rng(0), SHIFTS[kind](shift), 0, []
    for k in range(100):
        x, y = rng.normal(size=300), rng.normal(shift, size=200)
        found = distance(x, y, kind, resamples=100, confidence=0.9, seed=k)
        held += found.low <= exact <= found.high
        lengths.append(found.high - found.value)
    assert held >= 84
    assert (
        np.mean(lengths) < {"ks": 0.13, "wasserstein": 0.25, "energy": 0.18}[kind]
    )  # and not by being wide


def test_ties():
    found = distance([0, 0, 1, 1] * 50, [0, 1, 1, 1] * 50, "ks")
    assert found.value == pytest.approx(0.25)
    assert 0.1 < found.low < 0.25 < found.high < 0.4


def test_equal_laws_and_tensors():
    x = np.random.default_rng(0).normal(size=500)
    assert float(distance(x, x)) == 0
    found = distance(torch.tensor(x), x + 0.5, "wasserstein")
    assert found.value == pytest.approx(0.5)
    assert str(found).startswith("wasserstein 0.5000 [")


@pytest.mark.parametrize(
    ("arguments", "code", "argument", "words"),
    [
        (([], [1.0]), "invalid-argument", "x", ""),
        (([1.0], [np.nan]), "invalid-argument", "y", "numbers"),
        (([1.0], [-np.inf, 1.0]), "invalid-argument", "y", "least 1"),
        (([1.0], [1.0], "kl"), "unknown-name", "distance", ""),
        (([1.0], [1.0], "ks", 0), "invalid-argument", "resamples", ""),
        (([1.0], [1.0], "ks", 10, 1.0), "invalid-argument", "confidence", "between 0"),
    ],
)
def test_wrong_samples(arguments, code, argument, words):
    with refuses(code, argument=argument) as caught:
        distance(*arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", ["ks", "wasserstein", "energy"])
def test_intervals_contain_their_estimate(kind):
    for seed in range(20):
        x, y = np.random.default_rng(seed).standard_normal((2, 100))
        found = distance(x, y, kind, resamples=30)
        assert 0 <= found.low <= found.value <= found.high
