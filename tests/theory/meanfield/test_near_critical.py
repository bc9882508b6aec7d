"""Ten digits next to the critical line, against the same equations solved with thirty.

The oracle shares nothing with the library: trapezoidal sums, which converge exponentially for
analytic functions, in one variable and on the plane, and Newton's method with secants in multiple
precision.
"""

import mpmath as mp
import numpy as np
import pytest

from orderone import theory

DIGITS, STEP, REACH = 32, mp.mpf(1) / 12, 10


def line():
    return [(STEP * k, STEP * mp.npdf(STEP * k)) for k in range(-REACH * 12, REACH * 12 + 1)]


def average(f, q):
    root = mp.sqrt(q)
    return sum(w * f(root * z) for z, w in line())


def sech_squared(x):
    return 1 / mp.cosh(x) ** 2


@pytest.fixture(scope="module")
def edge():
    """(q, weight_var) on the critical line of tanh with bias_var = 1/20."""
    with mp.workdps(DIGITS):

        def left(q):
            return q - average(lambda x: mp.tanh(x) ** 2, q) / average(
                lambda x: sech_squared(x) ** 2, q
            )

        q = mp.findroot(
            lambda q: left(q) - mp.mpf("0.05"), (mp.mpf("0.4"), mp.mpf("0.45")), solver="secant"
        )
        return q, 1 / average(lambda x: sech_squared(x) ** 2, q)


def test_the_critical_line(edge):
    assert theory.critical_weight_var("tanh", bias_var=0.05) == pytest.approx(
        float(edge[1]), rel=3e-15
    )


@pytest.mark.parametrize("distance", [1e-3, -1e-3, 1e-5, -1e-5, 1e-7])
def test_lengths_and_chi1_near_the_critical_line(edge, distance):
    weight_var = float(edge[1]) + distance
    network = theory.MeanField("tanh", weight_var, 0.05)
    with mp.workdps(DIGITS):
        W, b = mp.mpf(weight_var), mp.mpf(0.05)
        q = mp.findroot(
            lambda q: W * average(lambda x: mp.tanh(x) ** 2, q) + b - q, (edge[0], edge[0] * 1.01)
        )
        chi1 = W * average(lambda x: sech_squared(x) ** 2, q)
        assert network.q_star == pytest.approx(float(q), rel=1e-14)
        assert network.chi1 - 1 == pytest.approx(float(chi1 - 1), rel=1e-15 / abs(distance) + 1e-12)
        assert network.xi1 == pytest.approx(float(1 / abs(mp.log(chi1))), rel=1e-8)
    assert network.phase == ("chaotic" if distance > 0 else "ordered")


MP_ERF = {
    "M": lambda q: 2 / mp.pi * mp.asin(2 * q / (1 + 2 * q)),
    "D": lambda q: 4 / mp.pi / mp.sqrt(1 + 4 * q),
    "pair": lambda q, c: 2 / mp.pi * mp.asin(2 * q * c / (1 + 2 * q)),
    "slopes": lambda q, c: 4 / mp.pi / mp.sqrt((1 + 2 * q) ** 2 - (2 * q * c) ** 2),
}


@pytest.mark.parametrize("distance", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("keep", [1.0, 1 - 1e-6, 0.999, 0.9])
@pytest.mark.parametrize("kind", ["closed form", "series"])
def test_correlations_near_the_critical_line(distance, keep, kind):
    """erf has closed forms, so c* and chi_2 can be had with thirty digits; "series" treats erf as
    an unknown function."""
    from scipy.special import erf

    weight_var = theory.critical_weight_var("erf", bias_var=0.1, keep=keep) + distance
    network = theory.MeanField("erf" if kind == "closed form" else erf, weight_var, 0.1, keep)
    with mp.workdps(40):
        W, b, rho = mp.mpf(weight_var), mp.mpf(0.1), mp.mpf(keep)
        q = mp.findroot(lambda q: W / rho * MP_ERF["M"](q) + b - q, mp.mpf(network.q_star))
        start = mp.mpf(network.gap_star)
        gap = mp.findroot(
            lambda g: (W * MP_ERF["pair"](q, 1 - g) + b) / q - (1 - g),
            (start, start * (1 + mp.mpf(10) ** -9)),
        )
        chi2 = W * MP_ERF["slopes"](q, 1 - gap)
        assert network.gap_star == pytest.approx(float(gap), rel=3e-16 / distance + 1e-11)
        assert network.chi2 - 1 == pytest.approx(float(chi2 - 1), rel=1e-15 / distance + 1e-11)
    if distance == 1e-3:
        assert network.gap_star == pytest.approx(float(gap), rel=1e-11)


def test_correlations_of_tanh_near_the_critical_line(edge):
    """The plane sum of the oracle is slow, so one point: within 1e-3 of the line, without
    dropout."""
    network = theory.MeanField("tanh", float(edge[1]) + 1e-3, 0.05)
    z = np.arange(-9, 9.01, 1 / 10)
    weights = np.outer(*2 * [np.exp(-z * z / 2) / np.sqrt(2 * np.pi) / 10])
    g, q = network.gap_star, network.q_star
    x, y = (
        np.sqrt(q) * (np.sqrt(1 - g / 2) * z[:, None] + s * np.sqrt(g / 2) * z) for s in (1, -1)
    )
    lost = (weights * (np.tanh(x) - np.tanh(y)) ** 2 / 2).sum() * network.weight_var / q
    assert lost == pytest.approx(g, rel=1e-10)
    slopes = (weights * (1 - np.tanh(x) ** 2) * (1 - np.tanh(y) ** 2)).sum() * network.weight_var
    assert network.chi2 == pytest.approx(slopes, abs=1e-13)


def test_chi1_is_one_on_the_critical_line():
    for activation, bias_var in (
        ("tanh", 0.05),
        ("erf", 0.3),
        ("hard-tanh", 0.02),
        ("sin", 0.1),
        ("relu", 0.0),
        ("elu", 0.1),
    ):
        network = theory.MeanField(
            activation, theory.critical_weight_var(activation, bias_var=bias_var), bias_var
        )
        assert network.phase == "critical"
        assert network.xi1 == np.inf
        assert network.c_star == pytest.approx(1, abs=1e-13)
        assert network.trainable_depth() > 1e12
