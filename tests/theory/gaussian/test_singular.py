"""Functions that grow without bound: the true average where there is one, and infinity where there
is none."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import gamma

from orderone.theory import MeanField, activations, gaussian

LOG_MEAN = -(np.euler_gamma + math.log(2)) / 2  # E log abs(z)


def power_mean(p):
    """E abs(z)^p."""
    return 2 ** (p / 2) * gamma((1 + p) / 2) / math.sqrt(math.pi)


def precisely(f, at):
    with mp.workdps(40):
        sides = ([-14, -3, mp.mpf(at)], [mp.mpf(at), 3, 14])
        return float(
            mp.fsum(mp.quad(lambda x: f(abs(x - at)) * mp.npdf(x), side) for side in sides)
        )


@pytest.mark.parametrize("p", [-0.9, -0.5, -0.25, 0.5, 1.5])
def test_powers_have_their_averages(p):
    found = gaussian.expect(lambda x: np.abs(x) ** p, 4.0)
    assert found.value == pytest.approx(2**p * power_mean(p), rel=1e-12)
    assert found.error < 1e-10


@pytest.mark.parametrize(
    ("f", "same"),
    [
        (lambda x: x**-0.5, lambda x: x**-0.5),
        (lambda x: np.log(x) ** 2, lambda x: mp.log(x) ** 2),
        (lambda x: x**0.5, lambda x: mp.sqrt(x)),
    ],
)
@pytest.mark.parametrize("at", [0.3, 1 / math.pi])
def test_away_from_zero(f, same, at):
    found, exact = gaussian.expect(lambda x: f(np.abs(x - at))), precisely(same, at)
    assert abs(found.value - exact) <= found.error + 1e-14
    assert found.error < 1e-9


@pytest.mark.parametrize(
    "f", [lambda x: 1 / x, lambda x: x**-2, lambda x: np.abs(x - 0.3) ** -1.0, np.tan]
)
def test_averages_that_do_not_exist(f):
    assert gaussian.expect(f) == (math.inf, math.inf)
    assert activations.get(f).second_moment(np.array([0.1, 2.0])) == pytest.approx(
        [math.inf, math.inf]
    )


def test_moments_of_a_logarithm_and_of_roots():
    log, root = (
        activations.get(lambda x: np.log(np.abs(x))),
        activations.get(lambda x: np.sqrt(np.abs(x))),
    )
    assert log.mean(1.0) == pytest.approx(LOG_MEAN, rel=1e-12)
    assert log.second_moment(1.0) == pytest.approx(math.pi**2 / 8 + LOG_MEAN**2, rel=1e-12)
    assert root.mean(2.0) == pytest.approx(2**0.25 * power_mean(0.5), rel=1e-12)
    for phi in (
        log,
        root,
        activations.get(np.cbrt),
        activations.get(lambda x: np.sqrt(np.abs(x - 0.3))),
    ):
        assert phi.derivative_moment(1.0) == math.inf
    steep = activations.get(lambda x: np.abs(x - 0.3) ** 0.75)
    exact = 0.75**2 * precisely(lambda x: x**-0.5, 0.3)
    assert steep.derivative_moment(1.0) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("f", [lambda x: np.log(np.abs(x)), lambda x: np.abs(x) ** -0.25, np.cbrt])
def test_pairs_of_singular_functions_obey_price(f):
    phi, h = activations.get(f), 1e-4
    slope = (phi.pair(1.0, 1.0, 0.5 - h) - phi.pair(1.0, 1.0, 0.5 + h)) / (2 * h)
    assert phi.derivative_pair(1.0, 1.0, 0.5) == pytest.approx(slope, rel=1e-6)


def test_networks_say_what_does_not_exist():
    root = MeanField(lambda x: np.sqrt(np.abs(x)), 1.0, 0.1)
    assert (root.status, root.chi1, root.xi1, root.phase) == ("converged", math.inf, 0.0, "chaotic")
    for f in (lambda x: 1 / x, lambda x: np.exp(x**2), lambda x: np.where(x > 0, np.inf, 0.0)):
        network = MeanField(f, 1.0, 0.1)
        assert (network.status, network.q_star, network.chi1) == ("diverges", math.inf, math.inf)
        assert not np.isnan([network.c_star, network.chi2, network.xi1, network.xi2]).any()


@pytest.mark.parametrize("f", [np.floor, np.round])
def test_steps_are_infinitely_steep(f):
    """E floor(x)^2 is nearly q + 1/3: with weight_var 1 it grows for ever."""
    assert activations.get(f).derivative_moment(1.0) == math.inf
    endless, settled = MeanField(f, 1.0, 0.1), MeanField(f, 0.9, 0.1)
    assert (endless.status, endless.chi1) == ("diverges", math.inf)
    assert (settled.status, settled.chi1) == ("converged", math.inf)
    q = settled.q_star
    assert q == pytest.approx(0.9 * gaussian.expect(lambda x: f(x) ** 2, q).value + 0.1, rel=1e-11)


def test_constants_have_no_slope():
    network = MeanField(lambda x: 0 * x + 1.3, 1.0, 0.1)
    assert network.chi1 == network.chi2 == 0


def test_masses_far_from_zero():
    exp, q = activations.get(np.exp), np.array([50.0, 100.0, 250.0])
    assert exp.second_moment(q) == pytest.approx(np.exp(2 * q), rel=1e-11)
    assert exp.second_moment(400.0) == math.inf
    assert gaussian.expect(lambda x: np.exp(2 * x), 100.0).value == pytest.approx(
        math.exp(200), rel=1e-11
    )
