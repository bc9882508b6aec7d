"""Averages of every activation against adaptive quadrature and Monte Carlo."""

from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from scipy import integrate, special, stats

from orderone.theory import activations, gaussian

NAMES = [
    *activations.names(),
    "leaky-relu(0.2)",
    "elu(0.5)",
    "shaped-relu(1, -2, 64)",
    "polynomial(0.3, 1, 0.5, -0.2)",
]
KINKS = {"hard-tanh": (-1.0, 1.0)}
LENGTHS = (0.05, 1.0, 6.0)


def quadrature(f, q, name):
    """E f(sqrt(q) z), by QUADPACK between the kinks."""
    ends = sorted({-12.0, 0.0, 12.0, *(k / q**0.5 for k in KINKS.get(name, ()))})
    pieces = (
        integrate.quad(lambda z: f(q**0.5 * z) * stats.norm.pdf(z), a, b, epsabs=1e-13)[0]
        for a, b in pairwise(ends)
    )
    return sum(pieces)


@pytest.fixture(scope="module")
def plane():
    """Half a million pairs of standard normals."""
    return np.random.default_rng(0).standard_normal((2, 500_000))


@pytest.mark.parametrize("name", NAMES)
def test_moments_equal_quadrature(name):
    phi = activations.get(name)
    for q in LENGTHS:
        assert phi.mean(q) == pytest.approx(quadrature(phi, q, name), abs=1e-10)
        assert phi.second_moment(q) == pytest.approx(
            quadrature(lambda x: phi(x) ** 2, q, name), rel=1e-9
        )
        if name != "step":
            expected = quadrature(lambda x: phi.derivative(x) ** 2, q, name)
            assert phi.derivative_moment(q) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gap", [0.02, 0.6, 1.7])
def test_pairs_equal_monte_carlo(name, gap, plane):
    phi, (q1, q2), c = activations.get(name), (1.3, 0.6), 1 - gap
    x, y = q1**0.5 * plane[0], q2**0.5 * (c * plane[0] + (1 - c**2) ** 0.5 * plane[1])
    for average, f in ((phi.pair, phi), (phi.derivative_pair, phi.derivative)):
        if name == "step" and f is not phi:
            continue  # the derivative is a point mass
        samples = f(x) * f(y)
        error = samples.std() / len(samples) ** 0.5
        assert average(q1, q2, gap) == pytest.approx(samples.mean(), abs=5 * error + 1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_pairs_equal_the_plane(name):
    """A second quadrature, in two dimensions, for lengths that differ and correlations of both
    signs."""
    phi = activations.get(name)
    for gap in (0.1, 1.4):
        known = gaussian.expect_pair(phi, phi, (1.3, 0.6), gap, kinks=(0.0, *KINKS.get(name, ())))
        assert known.error < 1e-9
        assert phi.pair(1.3, 0.6, gap) == pytest.approx(known.value, abs=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_price(name):
    """d/dc E phi phi = sqrt(q1 q2) E phi' phi', by differences."""
    phi, h = activations.get(name), 1e-5
    for gap in (0.05, 0.8, 1.5):
        slope = (phi.pair(1.3, 0.6, gap - h) - phi.pair(1.3, 0.6, gap + h)) / (2 * h)
        assert (1.3 * 0.6) ** 0.5 * phi.derivative_pair(1.3, 0.6, gap) == pytest.approx(
            slope, rel=1e-5, abs=1e-9
        )


@pytest.mark.parametrize("name", NAMES)
def test_ends(name):
    """c = 1 is the diagonal, c = 0 is independence; the gap is zero at gap zero, exactly."""
    phi, q = activations.get(name), 1.7
    assert phi.output_gap(q, q, 0.0) == 0
    assert phi.pair(q, q, 0.0) == pytest.approx(phi.second_moment(q), rel=1e-13)
    assert phi.derivative_pair(q, q, 0.0) == pytest.approx(phi.derivative_moment(q), rel=1e-13)
    assert phi.pair(q, 0.4, 1.0) == pytest.approx(phi.mean(q) * phi.mean(0.4), abs=1e-13)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "step"])
def test_small_gaps_keep_their_digits(name):
    """output_gap(g) -> g q E phi'^2 / E phi^2 as g -> 0: a difference of correlations would be
    rounding by then."""
    phi, q = activations.get(name), 0.8
    for gap in (1e-12, 3e-16):
        expected = gap * q * phi.derivative_moment(q) / phi.second_moment(q)
        assert phi.output_gap(q, q, gap) == pytest.approx(expected, rel=1e-5, abs=0)


MP_PAIRS = {
    "relu": lambda q, c: q * (mp.sqrt(1 - c**2) + (mp.pi - mp.acos(c)) * c) / (2 * mp.pi),
    "erf": lambda q, c: 2 / mp.pi * mp.asin(2 * q * c / (1 + 2 * q)),
    "sin": lambda q, c: mp.exp(-q) * mp.sinh(q * c),
    "step": lambda q, c: mp.mpf(1) / 2 - mp.acos(c) / (2 * mp.pi),
    "gelu": lambda q, c: mp_gelu(q, q * c, (1 + q) ** 2),
}


def mp_gelu(q, k, s):
    return k / 4 + (
        k * mp.asin(k / mp.sqrt(s)) + (k**2 + q**2 * (s - k**2)) / (s * mp.sqrt(s - k**2))
    ) / (2 * mp.pi)


@pytest.mark.parametrize("name", MP_PAIRS)
@pytest.mark.parametrize("q", [1e-6, 0.7, 40.0, 1e5])
def test_closed_forms_to_fourteen_digits(name, q):
    with mp.workdps(50):
        for gap in (1e-16, 1e-9, 1e-3, 0.12, 0.13, 0.9, 1.6):
            Q, G = mp.mpf(q), mp.mpf(gap)
            expected = float(1 - MP_PAIRS[name](Q, 1 - G) / MP_PAIRS[name](Q, mp.mpf(1)))
            assert activations.get(name).output_gap(q, q, gap) == pytest.approx(expected, rel=2e-13)


def test_gelu_moment_is_the_closed_form_of_the_errata():
    K = np.array([0.1, 1.0, 7.0])
    expected = (
        K / 4
        + K**2 / (np.pi * (1 + K) * np.sqrt(1 + 2 * K))
        + K / (2 * np.pi) * np.arcsin(K / (1 + K))
    )
    assert activations.get("gelu").second_moment(K) == pytest.approx(expected, rel=1e-15)


def test_hard_tanh_by_owens_function():
    """E phi' phi' is the probability of a square, a sum of Owen's T; an oracle without any
    quadrature here."""

    def both_below(a, b, c):
        root = np.sqrt(1 - c * c)
        first, second = (
            special.owens_t(a, (b / a - c) / root),
            special.owens_t(b, (a / b - c) / root),
        )
        return (special.ndtr(a) + special.ndtr(b)) / 2 - first - second - 0.5 * (a * b < 0)

    for q, gap in ((0.5, 0.3), (2.0, 1e-4), (2.0, 1e-8), (30.0, 0.01), (1.0, 1.5)):
        t, c = 1 / q**0.5, 1 - gap
        square = both_below(t, t, c) - 2 * both_below(t, -t, c) + both_below(-t, -t, c)
        assert activations.get("hard-tanh").derivative_pair(q, q, gap) == pytest.approx(
            square, rel=1e-9
        )


def test_steep_functions_are_steps():
    """tanh of very long signals: nothing of its bend at zero is overlooked by too wide a grid."""
    q = np.array([1e4, 1e8, 1e12])
    left_out = 1 - activations.get("tanh").second_moment(q)  # E sech^2 -> 2 p(0) / sqrt(q)
    assert left_out == pytest.approx(2 / np.sqrt(2 * np.pi * q), rel=1e-3)
    assert activations.get("tanh").output_gap(1e12, 1e12, 0.5) == pytest.approx(
        np.arccos(0.5) * 2 / np.pi, rel=1e-5
    )


@pytest.mark.parametrize("name", NAMES)
def test_extreme_lengths_are_finite(name):
    phi = activations.get(name)
    with np.errstate(all="raise", under="ignore"):
        for q in (0.0, 1e-30, 1e12):
            for value in (
                phi.mean(q),
                phi.second_moment(q),
                phi.output_gap(q, q, 0.3),
                phi.pair(q, q, 0.3),
            ):
                assert np.isfinite(value)
