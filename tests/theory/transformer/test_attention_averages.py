"""Averages over attention, each against something that knows nothing of how they are found: heads
drawn one by one, differences, closed forms, and the two ways of computing them against each
other."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from orderone.theory.transformer import moments, points, problem
from orderone.theory.transformer.attention import attend
from orderone.theory.transformer.correlations import correlations
from orderone.theory.transformer.stream import Stream
from orderone.theory.transformer.tokens import Tokens
from orderone.theory.transformer.views import read_mask


def kernel(points, seed=0, features=None, shared=0.5):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((points, features or points + 2)) + shared * rng.standard_normal(
        features or points + 2
    )
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X @ X.T


def run(F, sequences=1, causal=False, strength=1.0, theta=None, mask=None, accuracy=5e-4, seed=0):
    tokens = Tokens(sequences, len(F) // sequences)
    stream = Stream(F, theta or {}, tokens)
    return attend(stream, stream, read_mask(mask, tokens, tokens, causal), strength, accuracy, seed)


def heads(F, sequences, visible, strength, number, seed=1):
    """sum Omega Omega F of single heads, whose scores are L Z L^T: its mean, the error of that, and
    its variance."""
    rng, length = np.random.default_rng(seed), len(F) // sequences
    L = np.linalg.cholesky(F + 1e-12 * np.eye(len(F)))
    Z = rng.standard_normal((number, len(F), len(F)))
    blocks = [slice(a * length, (a + 1) * length) for a in range(sequences)]
    attended = []
    for block, seen in zip(blocks, visible, strict=True):
        scores = np.where(seen, strength**0.5 * L[block] @ Z @ L[block].T, -np.inf)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        attended.append(weights / weights.sum(axis=2, keepdims=True) @ L[block])
    out = np.concatenate(attended, axis=1)
    each = out @ out.transpose(0, 2, 1)
    return each.mean(axis=0), each.std(axis=0) / number**0.5, each.var(axis=0)


@pytest.mark.parametrize(
    ("sequences", "length", "strength", "causal"),
    [
        (1, 2, 4.0, False),
        (1, 3, 1.0, False),
        (1, 3, 2.0, True),
        (2, 3, 1.0, False),
        (1, 5, 9.0, False),
        (2, 4, 1.0, True),
        (1, 9, 1.0, False),
        (3, 4, 0.25, False),
        (1, 7, 2.0, True),
        (2, 6, 1.0, True),
    ],
)
def test_against_heads_drawn_one_by_one(sequences, length, strength, causal):
    F = kernel(sequences * length, seed=length)
    tokens = Tokens(sequences, length)
    visible = read_mask(None, tokens, tokens, causal)
    found = run(F, sequences, causal, strength)
    mean, error, variance = heads(F, sequences, visible, strength, 20_000)
    assert np.all(np.abs(found.value - mean) <= 5 * error + 4 * found.errors.value + 1e-9)
    assert found.errors.value <= 5e-4
    np.testing.assert_allclose(found.variance, variance, atol=0.1 * variance.max() + 1e-6)


@pytest.mark.parametrize("strength", [0.2, 3.0, 30.0])
def test_two_tokens_by_gauss_hermite(strength):
    """For two keys attention is a logistic function of one number."""
    F, rho = np.array([[1, 0.4], [0.4, 1]]), 0.4
    z, weight = np.polynomial.hermite_e.hermegauss(250)
    weight /= weight.sum()
    spread = (strength * 2 * (1 - 0.4)) ** 0.5
    p, q = expit(spread * z)[:, None], expit(spread * (rho * z[:, None] + (1 - rho**2) ** 0.5 * z))
    each = p * q + (1 - p) * (1 - q) + F[0, 1] * (p * (1 - q) + (1 - p) * q)
    assert run(F, strength=strength).value[0, 1] == pytest.approx(weight @ each @ weight, abs=1e-7)


def test_three_tokens_are_known_to_eight_digits():
    """A finer and wider grid changes nothing."""
    F = kernel(3, seed=8)
    found = run(F).value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(points, "RULES", dict.fromkeys(range(5), (7.5, 0.8)))
        patch.setattr(problem, "LARGEST_RULE", np.inf)
        np.testing.assert_allclose(run(F).value, found, atol=2e-8)


def test_heads_fluctuate_as_measured():
    """Erratum S2.5: C_Q = C_K = 3, F_12 = -0.8: the standard deviation of Delta G_12 is .49 /
    sqrt(heads)."""
    found = run(np.array([[1, -0.8], [-0.8, 1]]), strength=9.0)
    assert found.variance[0, 1] ** 0.5 == pytest.approx(
        0.4929298155271366, abs=1e-9
    )  # on a grid of 3001 x 3001


@pytest.mark.parametrize("causal", [False, True])
def test_the_propagated_tangent_kernel_is_the_derivative(causal):
    """Erratum S2.4, by differences: R between two sequences, along a change of F between them and
    only between them."""
    F, change = kernel(4, seed=3), np.zeros((4, 4))
    change[:2, 2:] = [[0.3, -0.2], [0.1, 0.25]]
    change += change.T
    attended = run(F, 2, causal, 2.0, {"x": change})
    found = attended.propagated["x"]
    step = 1e-4
    up, down = (run(F + sign * step * change, 2, causal, 2.0).value for sign in (1, -1))
    np.testing.assert_allclose(found[:2, 2:], ((up - down) / (2 * step))[:2, 2:], atol=1e-6)
    without_queries = found - 2.0 * attended.bend * change
    assert np.abs(without_queries - found)[:2, 2:].max() > 1e-3  # a term that must not be dropped


def test_bends_are_the_sum_of_derivatives():
    """The expanded form of `moments`, in both ways, against the four-index sum."""
    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet(np.ones(4), (50, views)) for views in (2, 3))
    F, M, of_keys = rng.standard_normal((3, 4, 4))
    dp, dq = (
        np.einsum("svi,ik->svik", x, np.eye(4)) - x[..., :, None] * x[..., None, :] for x in (p, q)
    )
    expected = np.einsum("svik,sujl,ij,kl->vu", dp, dq, F, of_keys, optimize=True) / 50
    p, q = p[None], q[None]
    each = moments._inner(p @ F, q)
    for way, weight in itertools.product(
        (moments._one_by_one, moments._through_matrices), (np.full(50, 1 / 50), None)
    ):
        found = way(p, q, p @ F, each, {"F": F, "M": M}, {"F": F, "M": of_keys}, weight)
        np.testing.assert_allclose(found["bend", "M"][0], expected, rtol=1e-10)
        np.testing.assert_allclose(
            found["value", "M"][0], np.einsum("rsvi,rsuj,ij->vu", p, q, M) / 50, rtol=1e-10
        )


def test_many_views_are_drawn_together_with_correct_errors():
    """Causal attention: against the same averages one view after the other."""
    F = kernel(8, seed=4, shared=0.8)
    theta = {"x": F + np.eye(8)}
    found = run(F, causal=True, theta=theta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orderone.theory.transformer.attention.MANY_VIEWS", np.inf)
        by_views = run(F, causal=True, theta=theta, accuracy=2e-4)
    assert 0 < found.errors.value <= 5e-4
    errors = found.errors.value + by_views.errors.value
    np.testing.assert_allclose(found.value, by_views.value, atol=5 * errors)
    np.testing.assert_allclose(
        found.propagated["x"], by_views.propagated["x"], atol=5 * found.errors.propagated
    )
    np.testing.assert_allclose(F * found.bend, F * by_views.bend, atol=6 * found.errors.bend)


def test_control_variates_change_the_noise_and_not_the_mean(monkeypatch):
    """Two sequences, every group, heads: with and without control variates."""
    F = kernel(12, seed=4, shared=0.5)
    theta = {"x": F + np.eye(12)}
    found = run(F, 2, True, 2.0, theta, accuracy=1e-3)
    monkeypatch.setattr("orderone.theory.transformer.controlled.LARGEST", 0)
    plain = run(F, 2, True, 2.0, theta, accuracy=1e-3)
    errors = found.errors.value + plain.errors.value
    assert 0 < errors < 2.5e-3
    np.testing.assert_allclose(found.value, plain.value, atol=5 * errors)
    np.testing.assert_allclose(found.bend, plain.bend, atol=10 * errors)
    np.testing.assert_allclose(found.variance, plain.variance, atol=0.02)
    bound = found.errors.propagated + plain.errors.propagated
    np.testing.assert_allclose(found.propagated["x"], plain.propagated["x"], atol=bound)
    # by the first token alone, which attends to itself: the plain average of the others' attention
    assert found.value[0, 0] == pytest.approx(F[0, 0], rel=1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_sampling_agrees_with_product_rules(causal, monkeypatch):
    F = kernel(3, seed=5)
    theta = {"x": F + np.eye(3), "y": np.eye(3)}
    exact = run(F, causal=causal, theta=theta)
    monkeypatch.setattr(problem, "RULES", {})
    sampled = run(F, causal=causal, theta=theta)
    assert exact.errors.value == 0 < sampled.errors.value
    np.testing.assert_allclose(sampled.value, exact.value, atol=5 * sampled.errors.value)
    np.testing.assert_allclose(sampled.bend, exact.bend, atol=1e-3)
    for name in theta:
        np.testing.assert_allclose(sampled.propagated[name], exact.propagated[name], atol=5e-3)


def test_interpolation_is_accurate(monkeypatch):
    """Many correlations, so that Chebyshev points are used, against each correlation by itself."""
    F = kernel(24, seed=2, shared=0.2)
    interpolated = run(F, sequences=12)
    monkeypatch.setattr("orderone.theory.transformer.attention.node_count", lambda *_: 10_000)
    monkeypatch.setattr(problem, "RULE_WORK", np.inf)
    exact = run(F, sequences=12)
    np.testing.assert_allclose(interpolated.value, exact.value, atol=5e-3)
    assert len(correlations(F, 5).nodes) == 5


@pytest.mark.parametrize("causal", [False, True])
def test_symmetric_and_semidefinite_even_where_the_kernel_is_singular(causal):
    F = kernel(24, seed=1, features=3)
    value = run(F, 2, causal, accuracy=1e-2).value
    np.testing.assert_array_equal(value, value.T)
    assert np.linalg.eigvalsh(value)[0] > -1e-12


def test_masked_keys_have_no_effect():
    F = kernel(5, seed=4)
    seen = np.array([True, True, True, False, False])
    masked = run(F, mask=seen).value[:3, :3]
    np.testing.assert_allclose(masked, run(F[:3, :3]).value, atol=2e-3)


def test_order_of_tokens_does_not_matter():
    F, order = kernel(3, seed=6), [2, 0, 1]
    np.testing.assert_allclose(
        run(F[np.ix_(order, order)]).value, run(F).value[np.ix_(order, order)], atol=1e-9
    )


def test_one_key_or_equal_keys_are_passed_on():
    np.testing.assert_allclose(run(np.array([[0.7]])).value, [[0.7]])
    np.testing.assert_allclose(run(np.full((6, 6), 0.8)).value, 0.8, rtol=1e-6)


def test_no_strength_is_the_mean_over_keys():
    F = kernel(8, seed=7)
    np.testing.assert_allclose(run(F, strength=0.0).value, F.mean(), rtol=1e-5)


@given(st.integers(1, 2), st.integers(1, 4), st.floats(0, 30), st.booleans(), st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_any_kernel_gives_numbers_between_its_extremes(sequences, length, strength, causal, seed):
    F = kernel(sequences * length, seed, features=1 + seed % 5)
    found = run(F, sequences, causal, strength, accuracy=5e-3)
    assert np.all(np.isfinite(found.value))
    assert found.value.max() <= F.max() + 0.05
    assert found.value.diagonal().min() >= -1e-12
