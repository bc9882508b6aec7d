"""S0 A.1, A.2, Lemmas D.1 to D.3, against closed forms, Monte Carlo, autograd and networks."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from support.errors import refuses

from orderone import rules
from orderone.theory import exponents, first_pass


def test_logit_gradient_of_small_and_large_logits():
    """First order for small logits; for two classes a logistic integral; large: 0 or 1."""
    small = first_pass.logit_gradient(10, 1e-6)
    assert small.variance == pytest.approx(small.first_order_variance, rel=1e-4)
    assert small.covariance == pytest.approx(small.first_order_covariance, rel=1e-4)
    two = first_pass.logit_gradient(2, 3.0)
    z = np.linspace(-12, 12, 20001)
    p = 1 / (1 + np.exp(-np.sqrt(6.0) * z))
    density = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    assert two.variance == pytest.approx(float((p - 0.5) ** 2 @ density), rel=1e-9)
    assert first_pass.logit_gradient(5, 0).variance == pytest.approx(0, abs=1e-15)
    assert first_pass.logit_gradient(4, 900.0).square == pytest.approx(2 * 0.75, abs=0.1)


@pytest.mark.parametrize(("vocab", "variance"), [(10, 1.0), (3, 9.0)])
def test_logit_gradient_against_draws(vocab, variance):
    found = first_pass.logit_gradient(vocab, variance)
    logits = np.random.default_rng(0).normal(0, variance**0.5, (400_000, vocab))
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    gradient = p - np.eye(vocab)[0]
    cov = np.cov(gradient.T)
    assert found.variance == pytest.approx(cov.diagonal().mean(), rel=0.01)
    assert found.covariance == pytest.approx(cov[0, 1], rel=0.06)
    assert found.square == pytest.approx((gradient**2).sum(1).mean(), rel=0.01)
    assert abs(found.variance / found.first_order_variance - 1) > 0.04  # the order matters here


def test_inits_keep_what_they_promise():
    widths = [64, 256, 32, 128]
    forward = first_pass.first_pass(widths, 50, embedding_var=2.0)
    np.testing.assert_allclose(forward.h, 2.0)  # (26)
    backward = first_pass.first_pass(widths, 50, init="fan-out")
    np.testing.assert_allclose(backward.h_gradient, backward.h_gradient[-1])  # (27)
    between = first_pass.first_pass(widths, 50, init="glorot")
    assert between.h[1] == pytest.approx(2 * 64 / (64 + 256))
    assert between.h_gradient[2] == pytest.approx(between.h_gradient[3] * 2 * 128 / (32 + 128))
    assert first_pass.hidden_weight_var(64, 256, "glorot") == 2 / 320


@pytest.mark.parametrize("norm", [False, True])
def test_first_pass_against_networks(norm):
    widths, vocab = [96, 192, 64], 7
    hidden = [1.5 / 96, 0.7 / 192]
    theory = first_pass.first_pass(
        widths, vocab, hidden_var=hidden, embedding_var=0.5, readout_var=2 / 64, norm=norm
    )
    generator = torch.Generator().manual_seed(0)
    sizes = [(96, vocab), (192, 96), (64, 192), (vocab, 64)]
    variances = [0.5, *hidden, 2 / 64]
    squares = torch.zeros(4)
    gradients = torch.zeros(3)
    seeds = 150
    for _ in range(seeds):
        weights = []
        for shape, variance in zip(sizes, variances, strict=True):
            weight = torch.randn(shape, generator=generator) * variance**0.5
            weights.append(weight.requires_grad_())
        h = weights[0][:, 3]
        states = []
        for weight in weights[1:]:
            if norm:
                h = h / h.square().mean().sqrt()
            h.retain_grad()
            states.append(h)
            h = weight @ h
        torch.nn.functional.cross_entropy(h[None], torch.tensor([1])).backward()
        found = [w.grad.square().mean() for w in weights]
        found[0] = weights[0].grad[:, 3].square().mean()
        squares += torch.tensor(found)
        gradients += torch.stack([state.grad.square().mean() for state in states])
    np.testing.assert_allclose(squares / seeds, theory.weight_gradient, rtol=0.15)
    np.testing.assert_allclose(gradients / seeds, theory.h_gradient, rtol=0.15)


def test_rms_norm_jacobian():
    rng = np.random.default_rng(0)
    u, gradient = rng.standard_normal(6), rng.standard_normal(6)
    for eps in (0.0, 0.3):
        x = torch.tensor(u, requires_grad=True)

        def norm(x, eps=eps):
            return x / (x.square().mean() + eps).sqrt()

        expected = torch.autograd.functional.jacobian(norm, x).numpy()
        np.testing.assert_allclose(first_pass.rms_norm_jacobian(u, eps), expected, atol=1e-12)
        back = first_pass.rms_norm_backward(u, gradient, eps)
        np.testing.assert_allclose(back, expected.T @ gradient, atol=1e-12)
    jacobian = first_pass.rms_norm_jacobian(u)
    np.testing.assert_allclose(jacobian @ u, 0, atol=1e-12)  # Lemma D.2: nothing along u
    with refuses("zero-variance", argument="u"):
        first_pass.rms_norm_jacobian(np.zeros(3))


def test_attention_outputs():
    rng = np.random.default_rng(0)
    p = np.array([0.5, 0.3, 0.2])
    output, final = first_pass.attention_output_var(p, 2.0, 1 / 64, heads=4, head_size=16)
    o = np.tensordot(p, rng.normal(0, 2**0.5, (3, 20000, 64)), 1)
    assert output == pytest.approx(o.var(), rel=0.02)
    final_drawn = (o * rng.normal(0, 1 / 8, o.shape)).sum(1)
    assert final == pytest.approx(final_drawn.var(), rel=0.05)
    sizes = exponents.Attention().rms(rules.get("mup"))
    assert (sizes["o"], sizes["o_final"]) == (0, 0)
    small = rules.custom(
        "small", a={"embedding": 0, "hidden": 0, "readout": 0}, b=(0, 1, 1), c=(0, 1, 1)
    )
    assert exponents.Attention(qk_norm=True).rms(small)["o_final"] == -1


def test_spectral_norms_are_those_of_matrices():
    """Condition A.1: SP and muP at first; the unaligned rate n^-1/2 breaks it (erratum S0.7)."""
    for name in ("sp", "ntk", "mup", "mf"):
        norms = exponents.spectral_norms(rules.get(name))
        assert norms["W1"] == norms["ΔW1"] == 0
        assert exponents.keeps_spectral_norms(rules.get(name)) == (name in ("sp", "ntk"))
    # the readout of muP has a smaller norm than Condition A.1 asks for
    assert exponents.spectral_norms(rules.get("mup"))["W4"] == Fraction(-1, 2)
    fast = rules.custom("fast", a=(0, 0, 0), b=(0, "1/2", "1/2"), c=(0, "1/2", "1/2"))
    assert exponents.spectral_norms(fast)["ΔW1"] == Fraction(1, 2)
    assert not exponents.keeps_spectral_norms(fast)
    rng = np.random.default_rng(0)
    slopes = []
    for make in (
        lambda n: rng.standard_normal((n, n)) / n**0.5,
        lambda n: np.sign(np.outer(rng.standard_normal(n), rng.standard_normal(n))) / n**0.5,
    ):
        values = [np.linalg.norm(make(n), 2) for n in (64, 256)]
        slopes.append(np.log(values[1] / values[0]) / np.log(4))
    np.testing.assert_allclose(slopes, [0, 0.5], atol=0.05)
