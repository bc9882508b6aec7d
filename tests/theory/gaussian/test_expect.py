"""Averages of any function, with an estimate of their error."""

import math

import numpy as np
import pytest

from orderone.theory import gaussian
from orderone.theory.gaussian.piecewise import resolve


@pytest.mark.parametrize(
    ("f", "kinks", "exact"),
    [
        (lambda x: x**4, (), lambda q: 3 * q**2),
        (np.cos, (), lambda q: np.exp(-q / 2)),
        (np.abs, (), lambda q: np.sqrt(2 * q / np.pi)),
        (lambda x: np.maximum(x - 1, 0), (1.0,), lambda q: np.sqrt(q) * _call(1 / np.sqrt(q))),
        (np.exp, (), lambda q: np.exp(q / 2)),
        (lambda x: 1.0 * (x > 0.3), (0.3,), lambda q: 0.5 * np.vectorize(math.erfc)(0.3 / np.sqrt(2 * q))),
    ],
)
def test_one_variable(f, kinks, exact):
    q = np.array([0.01, 1.0, 20.0])
    found = gaussian.expect(f, q, kinks)
    assert found.value == pytest.approx(exact(q), rel=1e-11)
    assert (found.error < 1e-8 * np.abs(found.value) + 1e-12).all()


def _call(t):
    """E (z - t)_+."""
    return np.exp(-t * t / 2) / math.sqrt(2 * math.pi) - t * 0.5 * np.vectorize(math.erfc)(t / math.sqrt(2))


def test_an_overlooked_kink_shows_in_the_error():
    sharp = lambda x: np.abs(x - 0.377)  # noqa: E731
    assert gaussian.expect(sharp).error > 1e-7
    assert gaussian.expect(sharp, kinks=(0.377,)).error < 1e-12


def test_what_does_not_exist_is_infinite():
    assert gaussian.expect(lambda x: np.exp(x * x)).value == math.inf


def test_pairs():
    for gap in (1e-10, 0.3, 1.0, 1.9):
        found = gaussian.expect_pair(np.sign, lambda y: y, (2.0, 3.0), gap)
        assert found.value == pytest.approx(math.sqrt(3 * 2 / math.pi) * (1 - gap), abs=1e-12)
        assert found.error < 1e-9


def test_pieces_end_at_kinks():
    found = resolve(lambda x: np.abs(x - 0.3) + np.tanh(3 * x), 8.0)
    assert found is not None
    assert found.kinks == (0.3,)
    x = np.linspace(-8, 8, 1001)
    assert found.slope(x) == pytest.approx(np.sign(x - 0.3) + 3 / np.cosh(3 * x) ** 2, abs=1e-10)
    assert resolve(lambda x: np.sin(1e6 * x), 8.0) is None
