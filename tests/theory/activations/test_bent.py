"""ELU and SELU: closed forms of pairs against the series and the plane, and against mpmath."""

import mpmath as mp
import numpy as np
import pytest

from orderone.theory import activations
from orderone.theory.activations.numeric_pairs import NumericAtLength


@pytest.mark.parametrize("name", ["elu", "selu", "elu(0.3)"])
@pytest.mark.parametrize("q", [1e-6, 0.3, 2.0, 11.0, 40.0, 3000.0])
def test_closed_forms_equal_the_series_and_the_plane(name, q):
    phi, gap = activations.get(name), np.array([1e-14, 1e-6, 0.03, 0.5, 1.0, 1.6])
    lengths = np.full(len(gap), q)
    closed, numeric = phi.at(lengths), NumericAtLength(phi, lengths, np)  # pyright: ignore[reportArgumentType]
    assert closed.output_gap(gap) == pytest.approx(numeric.output_gap(gap), rel=1e-9)
    assert closed.derivative_pair(gap) == pytest.approx(numeric.derivative_pair(gap), rel=1e-9)


def test_selu_against_many_digits():
    """E phi' phi' for SELU at q = 1, c = 0.8, with the conditional average over y in closed
    form."""
    alpha, scale = mp.mpf("1.6732632423543772"), mp.mpf("1.0507009873554805")
    c, spread = mp.mpf("0.8"), mp.mpf("0.6")

    def of_y(m):
        """E phi'(y) for y ~ N(m, spread^2), without the scale."""
        below = mp.exp(m + spread**2 / 2) * mp.ncdf(-(m + spread**2) / spread)
        return mp.ncdf(m / spread) + alpha * below

    left = mp.quad(lambda x: alpha * mp.exp(x) * of_y(c * x) * mp.npdf(x), [-14, -4, -1, 0])
    right = mp.quad(lambda x: of_y(c * x) * mp.npdf(x), [0, 1, 4, 14])
    expected = float(scale**2 * (left + right))
    found = activations.get("selu").at(np.ones(1)).derivative_pair(np.array([0.2]))
    assert found[0] == pytest.approx(expected, rel=1e-12)
