"""Rotary positions and shaped attention, against networks, two keys in closed form, and limits."""

import numpy as np
import pytest
import torch

from orderone import InputError, theory
from orderone.measure.kernels import empirical_ntk
from orderone.theory.transformer.attention import attend
from orderone.theory.transformer.positional import AttentionMap, Rotary
from orderone.theory.transformer.stream import Stream
from orderone.theory.transformer.tokens import Tokens
from orderone.theory.transformer.views import read_mask

TOKENS = 3
G0 = np.array([[1.0, 0.4, -0.2], [0.4, 1.0, 0.1], [-0.2, 0.1, 1.0]])
BASE = 1.5  # of large angles


class Heads(torch.nn.Module):
    """Attention with NTK multipliers, rotary positions in the convention of Llama, and shaping."""

    def __init__(self, n, heads, seed, rope, shaped, causal, temperature):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for name in "QKVU":
            weight = torch.randn(n, n, generator=generator, dtype=torch.float64)
            self.register_parameter(name, torch.nn.Parameter(weight))
        self.n, self.heads, self.rope = n, heads, rope
        self.shaped, self.causal, self.temperature = shaped, causal, temperature

    def turned(self, x):
        if not self.rope:
            return x
        half = x.shape[-1] // 2
        angles = BASE ** (-torch.arange(half, dtype=x.dtype) / half)
        turn = torch.outer(torch.arange(x.shape[-2], dtype=x.dtype), angles)
        a, b = x[..., :half], x[..., half:]
        cosine, sine = torch.cos(turn), torch.sin(turn)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

    def forward(self, z):
        root = self.n**0.5

        def split(x):
            return x.reshape(*x.shape[:-1], self.heads, -1).transpose(-3, -2)

        q, k, v = (split(z @ weight.T / root) for weight in (self.Q, self.K, self.V))
        q, k = self.turned(q), self.turned(k)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 / self.temperature
        visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool)
        if self.causal:
            visible = visible.tril()
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        if self.shaped:
            weights = weights + torch.eye(TOKENS) - visible / visible.sum(1, keepdim=True)
        mixed = (weights @ v).transpose(-3, -2).reshape(z.shape)
        return z + mixed @ self.U.T / root


def measured(n, heads, seeds, **settings):
    """Return means over networks of G and Theta, and their standard errors."""
    kernels, thetas = [], []
    for seed in range(seeds):
        block = Heads(n, heads, seed, **settings)
        basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, TOKENS)))[0]
        z = torch.tensor(np.linalg.cholesky(G0) @ basis.T * n**0.5)[None]
        out = block(z)[0].detach().numpy()
        kernels.append(out @ out.T / n)
        theta = empirical_ntk(block, z, outputs="all", select=lambda out: out[:, :, 0])
        thetas.append(theta[0, 0].numpy())
    root = seeds**0.5
    G, theta = np.array(kernels), np.array(thetas)
    return G.mean(0), G.std(0) / root, theta.mean(0), theta.std(0) / root


@pytest.mark.parametrize(
    "settings",
    [
        {"rope": True, "shaped": False, "causal": False, "temperature": 0.4},
        {"rope": False, "shaped": True, "causal": True, "temperature": 0.7},
    ],
)
def test_blocks_against_networks(settings):
    n, heads = 128, 16
    G, G_error, theta, theta_error = measured(n, heads, 24, **settings)
    model = theory.Transformer(
        "A",
        C={"PE": 0.0},
        eps=0.0,
        causal=settings["causal"],
        width=n,
        heads=heads,
        rope=BASE if settings["rope"] else None,
        attention="shaped" if settings["shaped"] else "softmax",
        temperature=settings["temperature"],
        accuracy=5e-3,
    )
    predicted = model.predict(G0, rates={"patch": 0.0, "PE": 0.0})
    # heads of eight channels have scores that are not Gaussian: 1 / C of the branch
    assert (abs(predicted.kernels[-1] - G) < 5 * G_error + 0.03).all()
    expected = predicted.ntk[1]
    assert (abs(expected - theta) < 5 * theta_error + 0.05 * expected.max()).all()
    plain = theory.Transformer(
        "A", C={"PE": 0.0}, eps=0.0, causal=settings["causal"], temperature=settings["temperature"]
    )
    without = plain.predict(G0, rates={"patch": 0.0, "PE": 0.0}).ntk[1]
    # 1 at the prediction, 0 at that of plain attention; noise across this direction does not count
    difference = expected - without
    place = ((theta - without) * difference).sum() / (difference**2).sum()
    assert abs(place - 1) < 0.5


def test_two_keys_by_gauss_hermite():
    """Two keys: attention is a logistic function of a difference of scores, for each query."""
    F = np.array([[1.0, 0.4], [0.4, 0.8]])
    rotary = Rotary(5.0, 8)
    g = rotary.overlap(np.arange(3))
    tokens = Tokens(1, 2)
    stream = Stream(F, {}, tokens)
    visible = read_mask(None, tokens, tokens, False)
    strength = 3.0
    found = attend(stream, stream, visible, strength, 1e-4, 0, chosen=AttentionMap(rotary))
    # x_t0 - x_t1 and x_u0 - x_u1, whose offsets are 0 - t, 1 - t, 0 - u, 1 - u
    covariance = np.empty((2, 2))
    for t in range(2):
        for u in range(2):
            signs = [(s, r, (-1) ** (s + r)) for s in range(2) for r in range(2)]
            covariance[t, u] = strength * sum(
                sign * F[t, u] * F[s, r] * g[abs((s - t) - (r - u))] for s, r, sign in signs
            )
    z, weight = np.polynomial.hermite_e.hermegauss(120)
    weight = weight / weight.sum()
    root = np.linalg.cholesky(covariance)
    a = 1 / (1 + np.exp(-root[0, 0] * z))[:, None]
    b = 1 / (1 + np.exp(-root[1, 0] * z[:, None] - root[1, 1] * z[None]))
    p, q = np.array([a + 0 * b, 1 - a + 0 * b]), np.array([b, 1 - b])
    expected = np.einsum("ixy,jxy,ij,x,y->", p, q, F, weight, weight)
    assert found.value[0, 1] == pytest.approx(expected, abs=4 * found.errors.value + 1e-6)
    assert found.errors.value < 2e-4
    other = attend(stream, stream, visible, strength, 1e-4, 0).value[0, 1]
    assert abs(other - expected) > 0.005


def test_overlaps_of_large_heads():
    x = np.arange(0, 40)
    many = Rotary(10_000.0, 2**14).overlap(x)
    np.testing.assert_allclose(Rotary(10_000.0).overlap(x), many, atol=2e-4)


def test_limits():
    """One token, positions that turn nothing, and a temperature that leaves the identity."""
    one = np.ones((1, 1))
    plain = theory.Transformer("A", eps=0.0)
    np.testing.assert_allclose(
        theory.Transformer("A", eps=0.0, rope=100.0).kernels(one), plain.kernels(one)
    )
    # angles of 1 and 1e-8: two thousand tokens apart, half of the channels agree
    assert Rotary(1e16, 4).overlap(np.array([2000.0]))[0] == pytest.approx((1 + np.cos(2000.0)) / 2)
    cold = theory.Transformer(
        "A", eps=0.0, C={"PE": 0.0}, attention="shaped", temperature=1e6, accuracy=5e-3
    )
    np.testing.assert_allclose(cold.kernels(G0)[-1], 2 * G0, atol=1e-5)
    half = theory.Transformer("A", eps=0.0, C={"Q": 0.25})
    warm = theory.Transformer("A", eps=0.0, temperature=2.0)
    np.testing.assert_allclose(warm.kernels(G0)[-1], half.kernels(G0)[-1])
    rates = {"Q": 4.0}  # lambda C is the same
    np.testing.assert_allclose(
        half.predict(G0, rates=rates).contributions[-1]["V"],
        warm.predict(G0).contributions[-1]["V"],
    )


def test_several_sequences_equal_one_by_one():
    model = theory.Transformer("A", eps=0.0, rope=10.0, accuracy=2e-3)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2, 4, 6))
    G = theory.transformer.patches(X)
    both = model.predict(G)
    alone = model.predict(G[1, :, 1])
    np.testing.assert_allclose(both.kernels[-1][1, :, 1], alone.kernels[-1], atol=0.02)
    np.testing.assert_allclose(both.ntk[-1][1, :, 1], alone.ntk[-1], rtol=0.03)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("rope", lambda: theory.Transformer(rope=1.0)),
        ("rope", lambda: theory.Transformer(rope=100.0, width=15, heads=5)),
        ("attention", lambda: theory.Transformer("AC", attention="shaped")),
        ("rope", lambda: theory.Transformer("A", heads=2, rope=10.0).few_heads(G0)),
        ("tokens", lambda: theory.Transformer("A", rope=10.0).ntk(np.eye(120))),
    ],
)
def test_refusals(argument, call):
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.argument == argument
