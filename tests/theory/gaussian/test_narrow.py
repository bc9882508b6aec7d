"""Bumps narrower than the samples of polynomials are found, down to the width that is stated."""

import numpy as np
import pytest
from scipy.special import ndtr

from orderone.theory import activations, gaussian
from orderone.theory.activations.numeric import Numeric
from orderone.theory.gaussian.narrow import FARTHEST, FINEST, narrow_features
from orderone.theory.gaussian.readable import readable

PLACES = np.random.default_rng(7).uniform(-3, 3, 12)


def box(at, width):
    return lambda x: np.tanh(x) + (np.abs(x - at) < width / 2)


@pytest.mark.parametrize("at", PLACES)
def test_boxes_of_the_stated_width_are_found(at):
    width = 1.01 * FINEST * max(1, abs(at))
    low, high = at - width / 2, at + width / 2
    value, error = gaussian.expect(lambda x: box(at, width)(x) - np.tanh(x))
    exact = ndtr(high) - ndtr(low)
    assert abs(value - exact) <= 1e-6 * exact + 2 * error
    phi = activations.get(box(at, width))
    assert isinstance(phi, Numeric)
    inside = [kink for kink in phi.kinks if low - 1e-9 <= kink <= high + 1e-9]
    assert inside
    # E (tanh + box)^2 = E tanh^2 + E box (1 + 2 tanh)
    expected = activations.get("tanh").second_moment(1.0) + exact * (1 + 2 * np.tanh(at))
    assert phi.second_moment(1.0) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("at", PLACES[:6])
@pytest.mark.parametrize("width", [3e-4, 3e-5, 5e-6])
def test_slopes_of_narrow_bumps_count(at, width):
    width *= max(1, abs(at))

    def f(x):
        return np.tanh(x) + np.exp(-(((x - at) / width) ** 2))

    # E (bump')^2 = sqrt(pi/2) / width times the density, to first order in the width
    steep = np.sqrt(np.pi / 2) / width * np.exp(-at * at / 2) / np.sqrt(2 * np.pi)
    found = activations.get(f).derivative_moment(1.0)
    assert found == pytest.approx(steep, rel=2 * width + 2 / steep)


def test_two_bumps_beside_each_other():
    def f(x):
        return np.tanh(x) + (np.abs(x - 0.7) < 4e-5) - (np.abs(x - 0.7003) < 4e-5)

    value, error = gaussian.expect(lambda x: f(x) - np.tanh(x))
    at = np.array([0.7 - 4e-5, 0.7 + 4e-5, 0.7003 - 4e-5, 0.7003 + 4e-5])
    below = ndtr(at)
    assert abs(value - (below[1] - below[0] - below[3] + below[2])) <= 1e-12 + 2 * error


def test_kinks_name_narrower_bumps():
    at, width = 0.71234, 1e-8
    assert narrow_features(readable(box(at, width), "f")) == ()  # narrower than stated
    value, _ = gaussian.expect(lambda x: box(at, width)(x) - np.tanh(x), kinks=[at])
    assert value == pytest.approx(width * np.exp(-at * at / 2) / np.sqrt(2 * np.pi), rel=1e-5)


def test_many_bumps_are_refused():
    at = np.sort(np.random.default_rng(3).uniform(-2, 2, 300))
    ends = np.sort(np.concatenate([at, at + FINEST]))

    def f(x):
        return np.tanh(x) + np.searchsorted(ends, x) % 2

    with pytest.raises(ValueError, match="narrow bumps"):
        activations.get(f)


@pytest.mark.parametrize("name", ["tanh", "sin", "arctan", "sqrt", "log1p", "abs", "floor", "exp"])
def test_usual_functions_have_no_narrow_features(name):
    def f(x):
        if name in ("sqrt", "log1p"):
            return getattr(np, name)(np.abs(x))
        return getattr(np, name)(x)

    assert FARTHEST == 16
    assert narrow_features(readable(f, "f")) == ()


def test_functions_get_arrays_of_their_own():
    """The points are kept for later calls. torch warns about arrays that cannot be written."""
    writable: list[bool] = []

    def ramp(x: np.ndarray) -> np.ndarray:
        writable.append(x.flags.writeable)
        return np.maximum(x, 0.0)

    for _ in range(2):
        assert narrow_features(readable(ramp, "f")) == ()
    assert all(writable)
