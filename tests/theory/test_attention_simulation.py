"""Attention scores on real queries and keys: one sign step on W_q and W_k, widths 64 to 2048, heads
larger or more."""

from fractions import Fraction as F
from functools import cache

import numpy as np
import pytest

from orderone import rules
from orderone.measure import fit_exponent
from orderone.theory.exponents import Attention

WIDTHS, SEEDS, FIXED_HEAD = (64, 128, 256, 512, 1024, 2048), 24, 16


@cache
def network(n: int, head: int, seed: int) -> tuple[np.ndarray, ...]:
    """Two inputs of random weights, the query of the first and the key of the second."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, n))
    Wq, Wk = rng.normal(size=(2, head, n)) / np.sqrt(n)
    return x, y, Wq @ x, Wk @ y


def scores(n: int, head: int, power: float, seed: int, qk_norm: bool) -> tuple[float, float]:
    """|s| at initialization and |Δs| after one step of size 1/n up the gradient of the score."""
    x, y, q, k = network(n, head, seed)

    def score(q, k):
        if qk_norm:
            q, k = (v / np.sqrt(np.mean(v**2)) for v in (q, k))
        return q @ k / head**power

    step = 0.1 / n  # Adam's largest stable hidden rate
    moved = score(q + step * np.sign(k) * np.abs(x).sum(), k + step * np.sign(q) * np.abs(y).sum())
    return abs(score(q, k)), abs(moved - score(q, k))


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("growth", [0, 1])
@pytest.mark.parametrize("power", [F(1, 2), F(1)])
def test_scores_grow_as_predicted(power, growth, qk_norm):
    runs = [
        (n, *scores(n, n if growth else FIXED_HEAD, float(power), seed, qk_norm))
        for n in WIDTHS
        for seed in range(SEEDS)
    ]
    width, start, change = np.array(runs).T
    predicted = Attention(power, growth, qk_norm).rms(rules.get("sp"), "full")
    for name, values in {"s": start, "Δs": change}.items():
        fit = fit_exponent(width, values, confidence=0.9999, correction=False)
        assert float(predicted[name]) in fit, (name, fit)
        assert fit.high - fit.low < 0.8
