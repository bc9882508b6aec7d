"""Steep smooth functions of the user: E phi'(x)^2 is large but finite; that of a jump is infinite.

Two oracles: the closed form for erf, and an integral in 25 digits over the stretched variable.
"""

import mpmath as mp
import numpy as np
import pytest
from scipy.special import erf, expit

from orderone import theory
from orderone.theory import activations

PLACES = (0.0, 0.3, -2.7)
STEEPNESS = (10.0, 1e3, 1e4, 1e6)
SHAPES = {
    "tanh": (np.tanh, lambda t: mp.sech(t) ** 2),
    "sigmoid": (expit, lambda t: mp.sech(t / 2) ** 2 / 4),
    "erf": (erf, lambda t: 2 / mp.sqrt(mp.pi) * mp.exp(-t * t)),
    "softplus": (lambda t: np.logaddexp(0, t), lambda t: 1 / (1 + mp.exp(-t))),
}


def slope_moment(slope, steepness, place, variance):
    """E slope(steepness (x - place))^2 in 25 digits."""
    with mp.workdps(25):
        root = mp.sqrt(variance)

        def integrand(t):
            return slope(t) ** 2 * mp.npdf((place + t / steepness) / root) / root / steepness

        last = float(12 * root + abs(place)) * steepness
        right = [3, *(10.0**k for k in range(1, 9))]
        inner = [t for t in right if t < last]
        ends = [-last, *(-t for t in reversed(inner)), 0, *inner, last]
        return float(mp.quad(integrand, ends))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("steepness", STEEPNESS)
def test_steep_functions_have_finite_slopes(name, place, steepness):
    shape, slope = SHAPES[name]
    phi = activations.get(lambda x: shape(steepness * (x - place)))
    exact = slope_moment(slope, steepness, place, 1.3) * steepness**2
    assert phi.derivative_moment(1.3) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("steepness", [10.0, 1e2, 1e4, 1e6, 1e9])
def test_closed_form_of_steep_error_functions(steepness):
    """E [2 s / sqrt(pi) exp(-s^2 x^2)]^2 = (4 s^2 / pi) / sqrt(1 + 4 s^2 q)."""
    phi = activations.get(lambda x: erf(steepness * x))
    q = np.array([0.1, 1.0, 7.0])
    exact = 4 * steepness**2 / np.pi / np.sqrt(1 + 4 * steepness**2 * q)
    assert phi.derivative_moment(q) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("steepness", [10.0, 1e4, 1e6])
def test_mean_field_of_steep_functions(steepness):
    """chi_1 = weight_var E phi'(sqrt(q*) z)^2 at the fixed point that the network reports."""
    network = theory.MeanField(lambda x: np.tanh(steepness * x), 1.5, 0.05)
    moment = slope_moment(SHAPES["tanh"][1], steepness, 0.0, float(network.q_star))
    assert network.chi1 == pytest.approx(1.5 * moment * steepness**2, rel=1e-8)


@pytest.mark.parametrize("steepness", [1e4, 1e6])
def test_a_kink_inside_a_steep_slope_is_no_jump(steepness):
    """Half of the slope of tanh is left."""
    phi = activations.get(lambda x: np.maximum(np.tanh(steepness * x), 0.0))
    exact = slope_moment(SHAPES["tanh"][1], steepness, 0.0, 1.0) * steepness**2 / 2
    assert phi.derivative_moment(1.0) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(
    "jump",
    [
        np.sign,
        lambda x: np.where(x > np.pi / 3, 1.0, 0.0),
        lambda x: x + (x >= 0.3),
        lambda x: np.tanh(1e4 * x) + 1e-3 * (x > 0.3),
    ],
)
def test_jumps_are_infinitely_steep(jump):
    assert activations.get(jump).derivative_moment(1.0) == np.inf
