"""Steep smooth functions of the user: E phi'(x)^2 is large but finite; that of a jump is infinite.

Two oracles: the closed form for erf, and an integral in 25 digits over the stretched variable.
"""

import time

import mpmath as mp
import numpy as np
import pytest
from scipy.special import erf, expit
from support.errors import refuses

from orderone import theory
from orderone.theory import activations
from orderone.theory.activations.numeric import Numeric
from orderone.theory.gaussian.pairs import plane_average

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


@pytest.mark.parametrize("place", [0.0, -0.862424, 2.14968])
@pytest.mark.parametrize("steepness", [1e3, 2.97e7, 6.93e9, 1.97e12])
def test_a_steep_softplus_is_a_relu(steepness, place):
    """The exponential tail of a steep softplus was taken for a pole: q* was infinite."""
    phi = activations.get(lambda x: np.logaddexp(0, steepness * (x - place)) / steepness)
    relu = activations.get(lambda x: np.maximum(x - place, 0))
    for q in (0.3, 1.3):
        exact = relu.second_moment(q)
        assert phi.second_moment(q) == pytest.approx(exact, rel=2 / steepness, abs=1e-12 * exact)


@pytest.mark.parametrize("place", [0.0, 1.2, -0.517])
@pytest.mark.parametrize("steepness", [3e2, 2.7e7, 3e9, 3.5e12])
def test_steep_ramps(steepness, place):
    """The kinks of a very steep ramp were taken for one: chi_1 was 0."""
    phi = activations.get(lambda x: np.clip(steepness * (x - place), -1, 1))
    exact = 2 * steepness * np.exp(-(place**2) / 2) / np.sqrt(2 * np.pi)
    if steepness < 1e8:
        assert phi.derivative_moment(1.0) == pytest.approx(exact, rel=1e-4)
    else:
        with refuses("unresolved-function", argument="activation"):
            phi.derivative_moment(1.0)


@pytest.mark.parametrize("place", [0.73, -1.3])
@pytest.mark.parametrize("shape", [np.tanh, np.arctan, erf, lambda t: t / (1 + np.abs(t))])
def test_slopes_of_few_doubles_are_refused(shape, place):
    """Such a slope was infinite; its neighbours below 1e9 are resolved."""
    phi = activations.get(lambda x: shape(5e12 * (x - place)))
    with refuses("unresolved-function", argument="activation"):
        phi.derivative_moment(1.0)


@pytest.mark.parametrize("frequency", [3.0, 10.0, 30.0])
def test_many_corners(frequency):
    """E sin^2 = 1/2 up to exp(-2 w^2); a corner beside its double was taken for a pole."""
    phi = activations.get(lambda x: np.abs(np.sin(frequency * x)))
    q = np.array([0.5, 1.3])
    rest = np.exp(-2 * frequency**2 * q)
    assert phi.second_moment(q) == pytest.approx((1 - rest) / 2, rel=1e-12)
    assert phi.derivative_moment(q) == pytest.approx(frequency**2 * (1 + rest) / 2, rel=1e-9)


@pytest.mark.parametrize(
    ("function", "height"),
    [
        (lambda x: np.sign(np.sin(20 * x)), 1.0),
        (lambda x: np.floor(7 * x) / 7, None),
    ],
)
def test_far_jumps_are_not_singular(function, height):
    """Each jump was also a singular point: the fixed point took minutes."""
    start = time.process_time()
    network = theory.MeanField(function, 1.5, 0.05)
    assert network.chi1 == np.inf
    if height is not None:
        assert network.q_star == pytest.approx(1.55, rel=1e-12)
    assert time.process_time() - start < 5  # 0.2 s


def test_a_jump_beside_a_weak_singularity_is_infinitely_steep():
    phi = activations.get(lambda x: np.sign(x) + np.abs(x) ** 0.8)
    assert phi.derivative_moment(1.0) == np.inf


@pytest.mark.parametrize(("width", "place"), [(1 / 380, -1.22108), (1 / 800, 0.3), (1 / 60, 3.7)])
def test_narrow_bumps_are_found(width, place):
    """Beside a bump its tail has no digits, and far from it f is zero."""
    phi = activations.get(lambda x: np.exp(-(((x - place) / width) ** 2)))
    spread = 1 + width**2 / 4
    moment = width / 2 / np.sqrt(spread) * np.exp(-(place**2) / 2 / spread)
    assert phi.second_moment(1.0) == pytest.approx(moment, rel=1e-9)


def test_hundreds_of_jumps_in_a_pair_are_refused():
    """The plane of pairs would be cut into 3e9 points: minutes for one average."""
    start = time.process_time()
    network = theory.MeanField(lambda x: np.round(127 * np.tanh(x)) / 127, 1.5, 0.05)
    with refuses("unresolved-function", argument="activation"):
        print(network.c_star)
    assert time.process_time() - start < 5


def test_sixty_jumps_need_fewer_nodes_on_narrow_panels():
    network = theory.MeanField(lambda x: np.round(np.tanh(x) * 30) / 30, 1.4, 0.1)
    phi = network.phi
    assert isinstance(phi, Numeric)
    q = float(network.q_star)
    gap = 1 - float(network.c_star)
    cuts = phi.plane_cuts(q)
    assert cuts.economical
    nodes = []

    def half_square(x, y):
        nodes.append(x.size)
        return (phi.value(x) - phi.value(y)) ** 2 / 2

    fewer = plane_average(half_square, q, q, gap, cuts)
    count = sum(nodes)
    nodes.clear()
    exact = plane_average(half_square, q, q, gap, cuts._replace(economical=False))
    assert fewer == pytest.approx(exact, rel=1e-12)
    assert count < sum(nodes) / 3
