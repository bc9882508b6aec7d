"""Effect of few heads: the shift of the mean is half the second derivative along fluctuations."""

import numpy as np
import pytest
from scipy.special import expit

from orderone import theory

C = {"Q": 3.0, "K": 3.0, "U": 2.0, "PE": 0.0}
G0 = np.array([[1.0, -0.6], [-0.6, 1.0]])
ENTRIES = ((0, 0), (0, 1), (1, 1))


def fluctuations(F12: float, strength: float) -> np.ndarray:
    """Covariance of G_11, G_12 and G_22 of one head, for two tokens of variance 1: on a grid."""
    z = np.linspace(-8, 8, 1201)
    weight = np.exp(-(z**2) / 2)
    weight = np.outer(weight, weight) / weight.sum() ** 2
    spread = (strength * 2 * (1 - F12)) ** 0.5
    p, q = expit(spread * z)[:, None], expit(spread * (F12 * z[:, None] + (1 - F12**2) ** 0.5 * z))
    each = [
        a * b + (1 - a) * (1 - b) + F12 * (a * (1 - b) + (1 - a) * b)
        for a, b in ((p, p), (p, q), (q, q))
    ]
    each = np.stack([np.broadcast_to(x, weight.shape) for x in each])
    mean = (each * weight).sum(axis=(1, 2))
    return np.einsum("iab,jab,ab->ij", each, each, weight) - np.outer(mean, mean)


def second_derivatives(G: np.ndarray, step: float = 0.02) -> np.ndarray:
    """(3, 3) of G_12 behind another block of attention, by the entries of G."""
    t = theory.Transformer("A", C=C, eps=0.0)

    def behind(*changes: tuple[int, float]) -> float:
        changed = G.copy()
        for entry, by in changes:
            i, j = ENTRIES[entry]
            changed[i, j] += by
            changed[j, i] = changed[i, j]
        return t.kernels(changed)[-1][0, 1]

    result = np.zeros((3, 3))
    for a, b in np.ndindex(3, 3):
        signs = [(x, y) for x in (1, -1) for y in (1, -1)]
        result[a, b] = sum(x * y * behind((a, x * step), (b, y * step)) for x, y in signs) / (
            4 * step**2
        )
    return result


def test_the_mean_is_shifted_by_half_the_second_derivative():
    heads = 16
    G1 = theory.Transformer("A", C=C, eps=0.0).kernels(G0)[-1]
    expected = (second_derivatives(G1) * 2.0**2 * fluctuations(-0.6, 9.0)).sum() / 2 / heads
    few = theory.Transformer("AA", C=C, eps=0.0, heads=heads).few_heads(G0, samples=1200)
    assert np.abs(few.shift[1]).max() < 1e-12  # one block is a mean over heads
    assert few.shift[2][0, 1] == pytest.approx(expected, abs=4 * few.shift_error[2][0, 1])
    assert abs(expected) > 4 * few.shift_error[2][0, 1]  # which is no accident
    assert (
        few.shift_error[2][0, 1] < few.error[2][0, 1] / 4
    )  # the noise of the mean itself hides it


def test_fluctuations_of_one_head():
    """Erratum S2.5 has .491, from draws that leave .002 open; the grid has .4929."""
    found = theory.Transformer("A", C={"Q": 3.0, "K": 3.0, "PE": 0.0}, eps=0.0)
    std = found.predict(np.array([[1, -0.8], [-0.8, 1]])).head_std(1)[-1][0, 1]
    assert std == pytest.approx(fluctuations(-0.8, 9.0)[1, 1] ** 0.5, abs=1e-8)
    assert std == pytest.approx(0.491, abs=0.0025)
