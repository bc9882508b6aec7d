"""Averages of any function, with an estimate of their error."""

import math

import numpy as np
import pytest
import torch
from scipy.special import owens_t
from support.errors import refuses

from orderone.core.errors import InputError
from orderone.theory import activations, gaussian
from orderone.theory.gaussian.piecewise import resolve


@pytest.mark.parametrize(
    ("f", "kinks", "exact"),
    [
        (lambda x: x**4, (), lambda q: 3 * q**2),
        (np.cos, (), lambda q: np.exp(-q / 2)),
        (np.abs, (), lambda q: np.sqrt(2 * q / np.pi)),
        (lambda x: np.maximum(x - 1, 0), (1.0,), lambda q: np.sqrt(q) * _call(1 / np.sqrt(q))),
        (np.exp, (), lambda q: np.exp(q / 2)),
        (
            lambda x: 1.0 * (x > 0.3),
            (0.3,),
            lambda q: 0.5 * np.vectorize(math.erfc)(0.3 / np.sqrt(2 * q)),
        ),
    ],
)
def test_one_variable(f, kinks, exact):
    q = np.array([0.01, 1.0, 20.0])
    found = gaussian.expect(f, q, kinks)
    assert found.value == pytest.approx(exact(q), rel=1e-11)
    assert (found.error < 1e-8 * np.abs(found.value) + 1e-12).all()


def _call(t):
    """E (z - t)_+."""
    return np.exp(-t * t / 2) / math.sqrt(2 * math.pi) - t * 0.5 * np.vectorize(math.erfc)(
        t / math.sqrt(2)
    )


@pytest.mark.parametrize(
    ("f", "exact"),
    [
        (lambda x: np.abs(x - 0.377), 0.377 + 2 * _call(0.377)),
        (lambda x: 1.0 * (x > 0.37), 0.5 * math.erfc(0.37 / math.sqrt(2))),
        (
            lambda x: np.exp(-(((x - 0.37) / 1e-3) ** 2)),
            math.exp(-(0.37**2) / (2 + 1e-6)) / math.sqrt(1 + 2e6),
        ),
        (lambda x: np.log(np.abs(x)), -(np.euler_gamma + math.log(2)) / 2),
    ],
)
def test_hidden_features_are_resolved_or_increase_the_error(f, exact):
    found = gaussian.expect(f)
    assert abs(found.value - exact) <= found.error + 1e-15
    assert found.error < 1e-9


@pytest.mark.parametrize(
    ("f", "code"),
    [
        (np.log, "invalid-argument"),
        (lambda x: x.sum(), "not-elementwise"),
        ("tanh", "wrong-type"),
        (None, "wrong-type"),
    ],
)
def test_functions_that_cannot_be_averaged(f, code):
    with refuses(code, argument="f"):
        gaussian.expect(f)


def test_functions_of_one_number_and_bad_kinks():
    assert gaussian.expect(math.cosh).value == pytest.approx(math.exp(0.5))
    with refuses("invalid-argument", argument="kinks"):
        gaussian.expect(np.abs, kinks=np.nan)


def test_pairs_over_arrays():
    q, gap = np.array([0.5, 30.0]), np.array([[0.5], [1.2]])
    found = gaussian.expect_pair(np.exp, np.exp, (q, 2 * q), gap)
    exact = np.exp((q + 2 * q) / 2 + (1 - gap) * np.sqrt(2) * q)
    assert found.value == pytest.approx(exact, rel=1e-11)
    assert (np.abs(found.value - exact) < 1e-11 * exact + 10 * found.error).all()
    assert gaussian.expect_pair(np.sin, np.sin, 1.0, 0.0).value == pytest.approx(
        (1 - math.exp(-2)) / 2
    )
    with refuses("invalid-argument", argument="variance"):
        gaussian.expect_pair(np.exp, np.exp, (1.0, 2.0, 3.0))


def test_averages_that_diverge_are_infinite():
    assert gaussian.expect(lambda x: np.exp(x * x)).value == math.inf


def test_pairs():
    for gap in (1e-10, 0.3, 1.0, 1.9):
        found = gaussian.expect_pair(np.sign, lambda y: y, (2.0, 3.0), gap)
        assert found.value == pytest.approx(math.sqrt(3 * 2 / math.pi) * (1 - gap), abs=1e-12)
        assert found.error < 1e-9


@pytest.mark.parametrize("degree", [3, 17, 25])
def test_polynomials_have_exact_moments(degree):
    """E x^2n = (2n - 1)!! q^n, in whole numbers."""
    phi = activations.get(f"polynomial({'0,' * degree}1)")
    assert phi.second_moment(2.0) == pytest.approx(
        math.prod(range(1, 2 * degree, 2)) * 2**degree, rel=1e-14
    )
    assert phi.derivative_moment(1.0) == pytest.approx(
        degree**2 * math.prod(range(1, 2 * degree - 2, 2)), rel=1e-14
    )


def test_pieces_end_at_kinks():
    found = resolve(lambda x: np.abs(x - 0.3) + np.tanh(3 * x), 8.0)
    assert found is not None
    assert found.kinks == (0.3,)
    x = np.linspace(-8, 8, 1001)
    assert found.slope(x) == pytest.approx(np.sign(x - 0.3) + 3 / np.cosh(3 * x) ** 2, abs=1e-10)
    assert resolve(lambda x: np.sin(1e6 * x), 8.0) is None


def _both_above(t, c):
    """P(x > t, y > t), by Owen's function."""
    return 0.5 * math.erfc(t / math.sqrt(2)) - 2 * owens_t(t, math.sqrt((1 - c) / (1 + c)))


def test_pairs_detect_unknown_jumps_and_kinks():
    step, bend, t = lambda x: 1.0 * (x > 0.37), lambda x: np.maximum(x - 0.37, 0.0), 0.37
    for c in (-0.4, 0.5, 0.999):
        found = gaussian.expect_pair(step, step, 1.0, 1 - c)
        assert abs(found.value - _both_above(t, c)) <= found.error + 1e-15
        assert found.error < 1e-10
        slope = gaussian.expect_pair(bend, bend, 1.0, 1 - c - 1e-5).value
        slope -= gaussian.expect_pair(bend, bend, 1.0, 1 - c + 1e-5).value  # Price
        assert slope / 2e-5 == pytest.approx(_both_above(t, c), rel=1e-6)


def test_pairs_of_singular_functions():
    """E log|x| log|y|: log|x| has the variance pi^2 / 8, and the pair is that of arcsin(c)^2 / 2
    beyond the means."""
    log, mean = lambda x: np.log(np.abs(x)), -(np.euler_gamma + math.log(2)) / 2
    found = gaussian.expect_pair(log, log, 1.0, 0.5)
    assert abs(found.value - mean**2 - math.asin(0.5) ** 2 / 2) <= found.error + 1e-14
    assert found.error < 1e-7
    assert gaussian.expect_pair(lambda x: 1 / x, np.tanh, 1.0, 0.5).value == math.inf
    assert gaussian.expect_pair(log, log, 1.0, 0.0).value == pytest.approx(
        math.pi**2 / 8 + mean**2, rel=1e-12
    )


def test_pairs_of_length_zero():
    assert gaussian.expect_pair(np.cos, np.exp, (0.0, 2.0), 0.3).value == pytest.approx(math.e)
    assert gaussian.expect_pair(np.exp, np.cos, (2.0, 0.0), 0.3).value == pytest.approx(math.e)


def test_orders_that_no_rule_has_are_refused():
    with pytest.raises(InputError) as caught:
        gaussian.average(np.sin, np.ones(1), 10**400, np.zeros(0))
    assert caught.value.argument == "order"


@pytest.mark.parametrize("kinks", [np.array([1 + 2j]), [1j, 2.0], torch.tensor([1 + 1j])])
def test_complex_numbers_are_refused(kinks):
    """The imaginary part was dropped with a warning."""
    with refuses("invalid-argument", argument="kinks"):
        gaussian.expect(np.tanh, 1.0, kinks)
