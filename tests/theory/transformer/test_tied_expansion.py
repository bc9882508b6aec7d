"""S2 (1.86), against the closed form of a linear model, and against tied networks."""

import numpy as np
import pytest
from support.errors import refuses

from orderone.theory.transformer import tied_expansion, tied_terms

WORDS = (0, 1)


def stem(rng, samples, n, C_WE, C_PE=0.25):
    """Return tables (samples, n, vocab) and the stem of both words (samples, 2, n)."""
    tables = np.sqrt(C_WE) * rng.standard_normal((samples, n, 3))
    positions = np.sqrt(C_PE) * rng.standard_normal((2, n))
    return tables, tables[:, :, list(WORDS)].transpose(0, 2, 1) + positions


def test_the_linear_model():
    """For one matrix V, the sums are traces; their averages over V are `tied_terms`."""
    rng = np.random.default_rng(0)
    n, C_WE, C_W = 12, 0.7, 1.3
    middle = np.eye(n) + np.sqrt(C_W / n) * rng.standard_normal((n, n))
    _, z1 = stem(rng, 3, n, C_WE)
    found = tied_expansion(lambda z: z @ middle.T, z1, C_WE)
    one = np.eye(2)
    contact = C_WE**2 / n * np.trace(middle) ** 2
    swap = C_WE**2 / n * np.trace(middle @ middle)
    assert found.contact == pytest.approx(contact * np.einsum("ta,ub->tuab", one, one), abs=1e-9)
    assert found.swap == pytest.approx(swap * np.einsum("tb,ua->tuab", one, one), abs=1e-9)
    assert found.curved == pytest.approx(0 * found.curved, abs=1e-7)
    s = z1 @ middle.T
    assert found.diagonal == pytest.approx(C_WE / n * np.einsum("mtj,muj->tu", s, s) / 3, rel=1e-12)
    draws = np.eye(n) + np.sqrt(C_W / n) * rng.standard_normal((40_000, n, n))
    traces = np.trace(draws, axis1=1, axis2=2) ** 2
    exact = tied_terms(n, C_WE, C_W)
    assert C_WE**2 / n * traces.mean() == pytest.approx(exact.contact, rel=0.01)


def blocks(n, rng):
    """Return attention over two tokens, an MLP, and a norm, with fixed weights."""
    A, B, query = (rng.standard_normal((n, n)) / np.sqrt(n) for _ in range(3))

    def s(z):
        scores = z @ query @ z.swapaxes(-1, -2) / np.sqrt(n)
        weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        z = z + 0.5 * weights @ z
        z = z + np.tanh(z @ A.T) @ B.T
        return z / np.sqrt((z**2).mean(-1, keepdims=True) + 0.1)

    return s


@pytest.mark.parametrize(("i", "j"), [(0, 0), (0, 1), (1, 0), (2, 2), (0, 2)])
def test_networks_with_tied_heads(i, j):
    """E[z_i z_j] over tables, for outputs that are words of the input and for others."""
    rng = np.random.default_rng(3)
    n, C_WE = 6, 0.6
    s = blocks(n, rng)
    positions = 0.5 * rng.standard_normal((2, n))
    tables = np.sqrt(C_WE) * rng.standard_normal((400_000, n, 3))
    z1 = tables[:, :, list(WORDS)].transpose(0, 2, 1) + positions
    logits = np.einsum("mjv,mtj->mtv", tables, s(z1)) / np.sqrt(n)
    products = logits[:, :, None, i] * logits[:, None, :, j]
    measured = products.mean(axis=0)
    error = products.std(axis=0) / np.sqrt(len(products))
    found = tied_expansion(s, z1[:400], C_WE)
    halves = [tied_expansion(s, z1[k : k + 200], C_WE).correlations(WORDS, i, j) for k in (0, 200)]
    spread = np.abs(halves[0] - halves[1]) + 4 * error
    assert (np.abs(found.correlations(WORDS, i, j) - measured) <= 2 * spread + 0.01).all()
    if i != j or i == 2:
        return
    # The terms of the tied head are needed: without them the first output is far off.
    assert np.abs(found.diagonal - measured)[0, 0] > 10 * spread[0, 0]


def test_wrong_shapes_are_refused():
    with refuses("invalid-argument", argument="z1"):
        tied_expansion(np.tanh, np.ones(3))
    with refuses("invalid-argument", argument="s"):
        tied_expansion(lambda z: z[..., 0], np.ones((2, 3)))
    with refuses("invalid-argument", argument="words"):
        tied_expansion(np.tanh, np.ones((2, 3))).correlations([0], 0, 0)
