"""Biases so small that differences of averages are rounding; known from the expansions of the
maps."""

import math

import mpmath as mp
import numpy as np
import pytest

from orderone.theory import MeanField, activations, critical_weight_var
from orderone.theory.meanfield.short_signals import short_signals


@pytest.mark.parametrize("bias_var", [1e-12, 1e-20, 1e-30, 1e-40])
@pytest.mark.parametrize(("name", "bend"), [("tanh", 2.0), (np.tanh, 2.0), ("sin", 1.0)])
def test_lengths_at_the_origin_of_the_critical_line(name, bend, bias_var):
    """E phi^2 = q - bend q^2 + ..., so that q* = sqrt(bias_var / bend)."""
    assert MeanField(name, 1.0, bias_var).q_star == pytest.approx(
        math.sqrt(bias_var / bend), rel=2e-5
    )
    if bias_var < 1e-20:
        assert MeanField(name, 1.0, bias_var).q_star == pytest.approx(
            math.sqrt(bias_var / bend), rel=1e-9
        )


@pytest.mark.parametrize("bias_var", [1e-14, 1e-20, 1e-27, 1e-60, 1e-120])
def test_the_critical_line_of_tanh(bias_var):
    """q - E phi^2 / E phi'^2 = 4 q^3 / 3 + ..., and 1 / E phi'^2 = 1 + 2 q + ..."""
    q = (0.75 * bias_var) ** (1 / 3)
    assert critical_weight_var("tanh", bias_var) == pytest.approx(1 + 2 * q, rel=6 * q * q + 1e-15)


def test_elu_has_powers_of_the_root():
    """For elu 1 - E phi'^2 is of order sqrt(q): by mpmath with 60 digits."""

    def moments(q):
        left = lambda f: mp.quad(lambda z: f(mp.sqrt(q) * z) * mp.npdf(z), [-14, -5, 0])  # noqa: E731
        return q / 2 + left(lambda x: mp.expm1(x) ** 2), mp.mpf("0.5") + left(
            lambda x: mp.exp(2 * x)
        )

    with mp.workdps(60):
        q = mp.mpf("1e-9")
        M, D = moments(q)
        bias_var, weight_var = float(q - M / D), float(1 / D)
    assert critical_weight_var("elu", bias_var) == pytest.approx(weight_var, rel=1e-12)


def test_series_equal_averages_where_both_are_known():
    for name in ("tanh", "erf", "gelu", "selu", "silu", "hard-tanh"):
        phi, q = activations.get(name), 9e-6
        short = short_signals(phi)
        assert short is not None
        assert short.excess(1.3, 0.1, q)[0] == pytest.approx(
            1.3 * phi.second_moment(q) + 0.1 - q, rel=1e-12
        )
    assert short_signals(activations.get("step")) is None
    assert short_signals(activations.get(lambda x: np.sqrt(np.abs(x)))) is None
