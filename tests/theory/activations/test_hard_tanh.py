"""Hard tanh near correlation one, against an integral over the angle with thirty digits."""

import mpmath as mp
import numpy as np
import pytest

from orderone.theory import activations


def exact_gap(q: float, gap: float) -> float:
    """q [gap P - int_0^theta f (gap - 1 + cos t) dt] / E phi^2, where f dt is what the slope loses
    at an angle t."""
    with mp.workdps(30):
        q, gap = mp.mpf(q), mp.mpf(gap)
        h, angle = 1 / mp.sqrt(q), 2 * mp.asin(mp.sqrt(gap / 2))
        inside = mp.erf(h / mp.sqrt(2))

        def lost(t):
            opposite = mp.exp(-(h**2) / (2 * mp.sin(t / 2) ** 2)) if t > 0 else 0
            return (
                (mp.exp(-(h**2) / (1 + mp.cos(t))) - opposite)
                / mp.pi
                * (gap - 2 * mp.sin(t / 2) ** 2)
            )

        moment = q * (inside - mp.sqrt(2 / mp.pi) * h * mp.exp(-(h**2) / 2)) + 1 - inside
        return float(q * (gap * inside - mp.quad(lost, [0, angle / 4, angle / 2, angle])) / moment)


@pytest.mark.parametrize("q", [0.02, 0.3, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("gap", [1e-15, 1e-9, 9e-4, 1.1e-3, 0.1, 1.0, 1.7])
def test_gaps_keep_their_digits(q, gap):
    assert activations.get("hard-tanh").output_gap(q, q, gap) == pytest.approx(
        exact_gap(q, gap), rel=3e-12
    )


@pytest.mark.parametrize(("q1", "q2"), [(0.3, 0.31), (1.0, 4.0), (0.01, 10.0), (7.0, 7.0)])
def test_both_averages_equal_monte_carlo(q1, q2):
    hard = activations.get("hard-tanh")
    x, z = np.random.default_rng(0).standard_normal((2, 1_000_000))
    for c in (-0.8, 0.2, 0.95):
        one, other = np.sqrt(q1) * x, np.sqrt(q2) * (c * x + np.sqrt(1 - c * c) * z)
        products = np.clip(one, -1, 1) * np.clip(other, -1, 1)
        both = (np.abs(one) < 1) & (np.abs(other) < 1)
        assert hard.pair(q1, q2, 1 - c) == pytest.approx(
            products.mean(), abs=4.5e-3 * products.std()
        )
        assert hard.derivative_pair(q1, q2, 1 - c) == pytest.approx(
            both.mean(), abs=4.5e-3 * both.std() + 1e-9
        )


def test_slope_is_the_derivative_of_the_pair():
    """Price's theorem, for lengths that differ."""
    hard, gap, step = activations.get("hard-tanh"), 0.4, 1e-5
    rise = (hard.pair(0.5, 2.0, gap - step) - hard.pair(0.5, 2.0, gap + step)) / (2 * step)
    assert rise == pytest.approx(hard.derivative_pair(0.5, 2.0, gap), rel=1e-7)
