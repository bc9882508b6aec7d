"""Pairs of polynomials against exact rational sums."""

from fractions import Fraction
from math import factorial

import numpy as np
import pytest

from orderone.theory import activations


def exact_pair(coefficients, q, c):
    """sum_k k! q^k c^k [sum_j c_{k+2j} q^j (k+2j)! / (2^j j! k!)]^2, in whole numbers."""

    def share(k):
        terms = ((n, (n - k) // 2) for n in range(k, len(coefficients), 2))
        return sum(
            coefficients[n] * q**j * Fraction(factorial(n), 2**j * factorial(j) * factorial(k))
            for n, j in terms
        )

    return sum(factorial(k) * (q * c) ** k * share(k) ** 2 for k in range(len(coefficients)))


@pytest.mark.parametrize("degree", [2, 7, 17, 25])
def test_pairs_are_exact_at_any_degree(degree):
    coefficients = [
        Fraction(int(x), 16) for x in np.random.default_rng(degree).integers(-16, 17, degree + 1)
    ]
    phi = activations.get(f"polynomial({','.join(str(float(c)) for c in coefficients)})")
    for q, c in ((Fraction(1), Fraction(7, 10)), (Fraction(9, 4), Fraction(-1, 2))):
        expected = float(exact_pair(coefficients, q, c))
        assert phi.pair(float(q), float(q), 1 - float(c)) == pytest.approx(expected, rel=1e-12)


def test_slopes_are_those_of_the_derivative():
    phi, slope = (
        activations.get("polynomial(1, 0, 0.5, -2, 1)"),
        activations.get("polynomial(0, 1, -6, 4)"),
    )
    assert phi.derivative_pair(0.5, 3.0, 0.3) == pytest.approx(slope.pair(0.5, 3.0, 0.3), rel=1e-13)


def test_gaps_keep_their_digits_and_lengths_their_range():
    cube = activations.get("polynomial(0, 0, 0, 1)")  # E x^3 y^3 / 15 = (9 c + 6 c^3) / 15
    assert cube.output_gap(2.0, 2.0, 1e-14) == pytest.approx(27 / 15 * 1e-14, rel=1e-12)
    for q in (0.0, 1e-200, 1.0, 1e200):
        assert cube.output_gap(q, q, 0.3) == pytest.approx(
            1 - (9 * 0.7 + 6 * 0.7**3) / 15, rel=1e-13
        )
