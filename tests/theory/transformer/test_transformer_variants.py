"""Gains, post-norm, QK-norm, gated MLPs and scores, against networks, derivatives and moments."""

# pyright: reportAttributeAccessIssue=false
# pyright: reportCallIssue=false
# pyright: reportOperatorIssue=false
# pyright: reportArgumentType=false

import numpy as np
import pytest
import torch
from support.errors import refuses

from orderone import theory
from orderone.core.errors import InputError
from orderone.measure.kernels import empirical_ntk
from orderone.nn import VisionTransformer
from orderone.theory import transformer
from orderone.theory.transformer import blocks
from orderone.theory.transformer.stream import Stream
from orderone.theory.transformer.tokens import Tokens
from orderone.theory.transformer.weights import Weights

TOKENS = 3
G0 = np.array([[1.0, 0.4, -0.2], [0.4, 1.0, 0.1], [-0.2, 0.1, 1.0]])


class Block(torch.nn.Module):
    """One block with NTK multipliers: attention with QK-norm, or a gated MLP."""

    def __init__(self, letter, n, heads, seed, post=False, norm_gain=1.0, skip_gain=1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        names = {"A": "QKVU", "G": ("W", "gate", "X")}[letter]
        for name in names:
            weight = torch.randn(n, n, generator=generator, dtype=torch.float64)
            self.register_parameter(name, torch.nn.Parameter(weight))
        self.letter, self.n, self.heads = letter, n, heads
        self.post, self.norm_gain, self.skip_gain = post, norm_gain, skip_gain

    def forward(self, z):
        root = self.n**0.5
        s = z if self.post else self.norm(z)
        if self.letter == "G":
            inner = torch.tanh(s @ self.W.T / root) * (s @ self.gate.T / root)
            branch = inner @ self.X.T / root
        else:
            branch = self.attention(s)
        out = self.skip_gain * z + branch
        return self.norm(out) if self.post else out

    def norm(self, z):
        return self.norm_gain * z / z.square().mean(-1, keepdim=True).sqrt()

    def attention(self, s):
        root = self.n**0.5

        def split(x):
            return x.reshape(*x.shape[:-1], self.heads, -1).transpose(-3, -2)

        q, k, v = (split(s @ weight.T / root) for weight in (self.Q, self.K, self.V))
        q, k = (x / x.square().mean(-1, keepdim=True).sqrt() for x in (q, k))
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
        mixed = (weights @ v).transpose(-3, -2).reshape(s.shape)
        return mixed @ self.U.T / root


def tokens_of(n, seed):
    """Inputs whose kernel is exactly G0."""
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((n, TOKENS)))[0]
    return torch.tensor(np.linalg.cholesky(G0) @ basis.T * n**0.5)[None]


def simulated(letter, n, heads, seeds, **settings):
    """Mean of G and Theta of the outputs of one block, per channel."""
    kernels, thetas = [], []
    for seed in range(seeds):
        block = Block(letter, n, heads, seed, **settings)
        z = tokens_of(n, seed)
        out = block(z)[0].detach().numpy()
        kernels.append(out @ out.T / n)
        theta = empirical_ntk(block, z, outputs="all", select=lambda out: out[:, :, 0])
        thetas.append(theta[0, 0].numpy())
    return np.mean(kernels, axis=0), np.mean(thetas, axis=0)


@pytest.mark.parametrize(
    ("letter", "settings"),
    [
        ("G", {}),
        ("G", {"norm_gain": 0.7, "skip_gain": 0.5}),
        ("G", {"post": True, "norm_gain": 1.3}),
        ("A", {}),
    ],
)
def test_blocks_against_networks(letter, settings):
    """G and the direct Theta of one block whose input has no parameters."""
    n, heads = (96, 1) if letter == "G" else (192, 48)
    kernel, theta = simulated(letter, n, heads, 40, **settings)
    settings = dict(settings)
    placement = "post" if settings.pop("post", False) else "pre"
    model = theory.Transformer(
        letter,
        "tanh",
        C={"PE": 0.0},
        eps=0.0,
        placement=placement,
        qk_norm=letter == "A",
        **settings,
    )
    rates = {"patch": 0.0, "PE": 0.0}
    np.testing.assert_allclose(model.kernels(G0)[-1], kernel, atol=0.06)
    expected = model.ntk(G0, rates=rates)[1]
    np.testing.assert_allclose(expected, theta, atol=0.13 * expected.max())


@pytest.mark.parametrize("letter", ["M", "G"])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_gains_and_placements_in_closed_form(letter, placement):
    """ReLU blocks by hand, with the kernel of arc cosines."""
    gain, skip = 0.7, 1.3
    C = {"W": 1.5, "X": 0.8}
    model = theory.Transformer(
        letter, "relu", C=C, eps=0.0, placement=placement, norm_gain=gain, skip_gain=skip
    )
    before, after = model.kernels(G0)

    def norm(G):
        size = np.sqrt(G.diagonal())
        return gain**2 * G / np.multiply.outer(size, size)

    def branch(F):
        size = np.multiply.outer(np.sqrt(F.diagonal()), np.sqrt(F.diagonal())) * C["W"]
        c = np.clip(C["W"] * F / size, -1, 1)
        pair = size * (np.sqrt(1 - c**2) + (np.pi - np.arccos(c)) * c) / (2 * np.pi)
        return C["X"] * pair * (C["W"] * F if letter == "G" else 1)

    if placement == "pre":
        expected = skip**2 * before + branch(norm(before))
    else:
        expected = norm(skip**2 * before + branch(before))
    np.testing.assert_allclose(after, expected, rtol=1e-7)


def test_gated_blocks_propagate_the_derivative():
    """Theta through a gated MLP is the derivative of its kernel between two inputs."""
    weights = Weights(theory.Transformer().C, {"W": 1.0, "X": 1.0})
    phi = theory.activations.get("gelu")
    change = np.array([[0.0, 0.3, 0.0], [0.3, 0.0, -0.2], [0.0, -0.2, 0.0]])

    def branch(F):
        stream = Stream(F, {}, Tokens(1, 3))
        return blocks.gated_block(stream, stream, phi, weights).stream.G - F

    stream = Stream(G0, {"x": change}, Tokens(1, 3))
    found = blocks.gated_block(stream, stream, phi, weights).stream.theta["x"] - change
    difference = (branch(G0 + 1e-5 * change) - branch(G0 - 1e-5 * change)) / 2e-5
    np.testing.assert_allclose(found, difference, atol=1e-7)


def test_gains_and_placements_that_change_nothing():
    plain = theory.Transformer("AM", eps=0.0)
    same = theory.Transformer("AM", eps=0.0, norm_gain=1.0, skip_gain=1, placement="pre")
    assert plain == same
    unit = theory.Transformer("A", eps=0.0, qk_norm=True).ntk(G0)
    np.testing.assert_allclose(unit[-1], theory.Transformer("A", eps=0.0).ntk(G0)[-1], rtol=1e-9)
    scaled = theory.Transformer("A", C={"Q": 4.0}, eps=0.0, qk_norm=True)
    np.testing.assert_allclose(scaled.kernels(G0)[-1], plain.kernels(G0)[1], rtol=1e-9)
    with pytest.raises(InputError, match="placement"):
        theory.Transformer("A", heads=2, placement="post").few_heads(G0)
    with pytest.raises(InputError, match="qk_norm"):
        theory.Transformer("A", eps=0.1, qk_norm=True).kernels(G0)


def test_moments_of_scores():
    """Second moments are the covariance; fourth ones against draws of heads of four channels."""
    covariance = transformer.score_covariance(G0, 2.0, 0.5)
    assert covariance[0, 1, 2, 0] == pytest.approx(G0[0, 2] * G0[1, 0])
    pair = transformer.score_moment([(0, 1), (2, 0)], G0, 2.0, 0.5, head_size=4)
    assert pair == pytest.approx(covariance[0, 1, 2, 0])
    assert transformer.score_moment([(0, 1)] * 3, G0) == 0
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(G0)
    q, k = (root @ rng.standard_normal((400_000, 3, 4)) for _ in range(2))
    s = np.einsum("xtc,xsc->xts", q, k) / 2
    for pairs in ([(0, 1)] * 4, [(0, 0), (0, 1), (1, 2), (1, 1)]):
        drawn = np.prod([s[:, a, b] for a, b in pairs], axis=0)
        found = transformer.score_moment(pairs, G0, head_size=4)
        assert found == pytest.approx(drawn.mean(), abs=5 * drawn.std() / 400_000**0.5)
    # kurtosis of one score: 3 (1 + 2 / C), and Gaussian for large heads
    assert transformer.score_moment([(0, 1)] * 4, G0, head_size=4) == pytest.approx(3 * 1.5)
    assert transformer.score_moment([(0, 1)] * 4, G0) == pytest.approx(3)


def test_products_of_attention():
    found = transformer.attention_products(G0, causal=True)
    value = theory.Transformer("A", C={"PE": 0.0}, eps=0.0, causal=True).kernels(G0)[-1] - G0
    np.testing.assert_allclose(found.value(G0), value, atol=5 * found.errors.max() + 1e-3)
    assert found.products[0, 0, 0, 0] == pytest.approx(1)
    # linear attention: the products are the covariance
    linear = transformer.attention_products(G0, 2.0, attention=lambda scores: scores)
    np.testing.assert_allclose(
        linear.products, transformer.score_covariance(G0, 2.0), atol=6 * linear.errors.max()
    )


def test_names_of_constants():
    assert theory.language_constants(1024)["Q"] == pytest.approx(0.4096)
    assert theory.language_constants(1024)["X"] == pytest.approx(1.6384)
    assert theory.LANGUAGE_STD == 0.02
    assert theory.n_rescale("neural-tangent", 64) == 1 / 8
    assert theory.n_rescale("maximal-update", 64) == 1 / 64


def test_constants_of_the_vision_transformer_are_those_of_its_tensors():
    """S2 II.1.C: Xavier's variance, with queries, keys and values as one tensor."""
    n, mlp = 256, 2
    C = theory.vision_constants(mlp)
    assert C["W"] == pytest.approx(n * 2 / (n + mlp * n))
    assert C["X"] == pytest.approx(mlp * n * 2 / (n + mlp * n))
    assert C["Q"] == pytest.approx(n * 2 / (n + 3 * n))
    model = VisionTransformer(image=8, patch=4, classes=4, width=n, heads=4, depth=1, mlp=mlp)
    block = model.layers[0]
    for group, weight in (("Q", block.attention.query), ("W", block.mlp.up), ("X", block.mlp.down)):
        variance = weight.weight.detach().square().mean().item()
        assert variance * weight.in_features == pytest.approx(C[group], rel=0.03)
    with refuses("invalid-argument", argument="mlp"):
        theory.vision_constants("wide")
