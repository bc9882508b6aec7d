"""Attention, tables and gates in PyTorch models, against wide networks and composed layers."""

import numpy as np
import pytest
import torch
from support.errors import refuses
from torch import Tensor, nn
from torch.nn import functional

import orderone as o1
from orderone.theory import kernels
from orderone.theory.transformer import HeadsAttention

TOKENS = 5


class Attention(nn.Module):
    """Self-attention in the ways in which people write it."""

    def __init__(self, n: int, style: str, causal: bool) -> None:
        super().__init__()
        self.heads, self.style, self.causal = n // 8, style, causal
        if style == "module":
            self.all = nn.MultiheadAttention(n, self.heads, batch_first=True)
        elif style in ("packed", "chunked"):
            self.qkv = nn.Linear(n, 3 * n)
        else:
            self.q, self.k, self.v = nn.Linear(n, n), nn.Linear(n, n, bias=False), nn.Linear(n, n)
        if style != "module":
            self.out = nn.Linear(n, n)

    def forward(self, h: Tensor) -> Tensor:
        examples, tokens, n = h.shape
        shape = (examples, tokens, self.heads, n // self.heads)
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        if self.style == "module":
            mask = hidden if self.causal else None
            return self.all(h, h, h, attn_mask=mask, need_weights=False)[0]
        if self.style == "packed":
            q, k, v = self.qkv(h).reshape(examples, tokens, 3, *shape[2:]).permute(2, 0, 3, 1, 4)
        elif self.style == "chunked":
            q, k, v = (x.view(shape).transpose(1, 2) for x in self.qkv(h).chunk(3, -1))
        elif self.style == "einsum":
            q, k, v = (layer(h).view(shape) for layer in (self.q, self.k, self.v))
        else:
            q, k, v = (layer(h).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.style in ("fused", "chunked"):
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            return self.out(y.transpose(1, 2).reshape(h.shape))
        root = shape[-1] ** 0.5
        if self.style == "einsum":
            scores = torch.einsum("bthd,bshd->bhts", q, k) / root
            if self.causal:
                scores = scores + torch.zeros(tokens, tokens).masked_fill(hidden, -torch.inf)
            y = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)
            return self.out(y.reshape(h.shape))
        scores = q @ k.transpose(-2, -1) * root**-1
        if self.causal:
            scores = scores.masked_fill(hidden, -torch.inf)
        y = functional.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(h.shape))


class Block(nn.Module):
    def __init__(self, n: int, style: str, causal: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(6, n)
        self.norm = nn.LayerNorm(n)
        self.attention = Attention(n, style, causal)
        self.head = nn.Linear(n, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = h + self.attention(self.norm(h))
        return self.head(h.mean(1))


STYLES = ["packed", "chunked", "einsum", "fused", "written", "module"]


@pytest.mark.parametrize("style", STYLES)
def test_every_way_to_write_attention_has_these_layers(style: str):
    torch.manual_seed(0)
    model = Block(32, style, causal=True).eval()
    layers = o1.kernel_from_module(model, torch.randn(2, TOKENS, 6)).net.layers
    assert [type(layer) for layer in layers] == [
        kernels.Dense,
        kernels.Residual,
        kernels.AveragePool,
        kernels.Dense,
    ]
    block = layers[1]
    assert isinstance(block, kernels.Residual)
    norm, attention, out = block.branch.layers
    assert isinstance(norm, kernels.LayerNorm)
    assert isinstance(attention, HeadsAttention)
    assert isinstance(out, kernels.Dense)
    assert attention.causal
    assert attention.strength == pytest.approx(1)
    weights = {name: p.detach().double() for name, p in model.attention.named_parameters()}
    if style == "module":
        queries, bias = weights["all.in_proj_weight"][:32], weights["all.in_proj_bias"][:32]
    elif style in ("packed", "chunked"):
        queries, bias = weights["qkv.weight"][:32], weights["qkv.bias"][:32]
    else:
        queries, bias = weights["q.weight"], weights["q.bias"]
    expected = kernels.Dense(32 * float(queries.square().mean()), float(bias.square().mean()))
    assert attention.queries.layers == (expected,)
    assert attention.queries != attention.keys


def scaled_ntk(model: nn.Module, x: Tensor) -> np.ndarray:
    """Tangent kernel of one output, with a factor in front of weights of order one.

    Gains of norms are not trained in `theory.kernels`.
    """
    parts = o1.empirical_ntk(model, x, outputs="mean", groups="each")
    total = np.zeros((len(x), len(x)))
    for name, parameter in model.named_parameters():
        if not name.startswith(("norm", "gain")):
            total += float(parameter.detach().square().mean()) * parts[name].numpy()
    return total


@pytest.mark.parametrize(("style", "causal"), [("packed", True), ("module", False)])
def test_wide_networks_have_both_kernels(style: str, causal: bool):
    torch.manual_seed(1)
    x = torch.randn(3, TOKENS, 6)
    x[1] = x[0] + 0.4 * x[1]
    measured, predicted = [], []
    for _ in range(6):
        model = Block(128, style, causal).eval()
        kernel = o1.kernel_from_module(model, x)(x)
        nngp = o1.empirical_nngp(model, x, outputs="mean").numpy()
        measured.append([nngp, scaled_ntk(model, x)])
        predicted.append([np.asarray(kernel.nngp), np.asarray(kernel.ntk)])
    mean, theory = np.mean(measured, 0), np.mean(predicted, 0)
    error = np.std(measured, 0, ddof=1) / 6**0.5
    scale = theory.max(axis=(1, 2), keepdims=True)
    assert (abs(mean - theory) < 4 * error + 0.05 * scale).all()


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=8, vocab_size=50, n_positions=16, bos_token_id=0
    )
    return transformers.GPT2Model(config)


def test_gpt2():
    """Packed weights, tables of words and positions, GELU written out; against the network."""
    torch.manual_seed(0)
    model = gpt2().eval()
    ids = torch.randint(0, 50, (2, 6))
    batch = {"input_ids": ids, "use_cache": False}
    found = o1.kernel_from_module(model, batch)
    kinds = [type(layer).__name__ for layer in found.net.layers]
    assert kinds == ["Dense", "AddPositions", *["Residual"] * 4, "LayerNorm"]
    cached = o1.kernel_from_module(model, {"input_ids": ids})  # with an empty cache of keys
    assert cached.net.layers[2] == found.net.layers[2]
    kernel = np.asarray(found(ids).correlation)
    with torch.no_grad():
        out = model(**batch).last_hidden_state.double().numpy()
    measured = np.einsum("atc,bsc->atbs", out, out) / 64
    assert abs(kernel - measured).max() < 5 * 64**-0.5
    assert np.corrcoef(kernel.ravel(), measured.ravel())[0, 1] > 0.9


class Vision(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, n, 2, stride=2)
        self.first = nn.Parameter(0.7 * torch.randn(1, 1, n))
        self.positions = nn.Parameter(0.5 * torch.randn(1, 5, n))
        self.blocks = nn.TransformerEncoderLayer(n, n // 8, 2 * n, norm_first=True)
        self.head = nn.Linear(n, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2)
        h = torch.cat((self.first.expand(len(x), -1, -1), h), dim=1) + self.positions
        h = self.blocks(h.transpose(0, 1)).transpose(0, 1)
        return self.head(h[:, 0])


def test_class_tokens_and_positions():
    torch.manual_seed(0)
    model = Vision(32).eval()
    x = torch.randn(2, 3, 4, 4)
    found = o1.kernel_from_module(model, x)
    kinds = [type(layer).__name__ for layer in found.net.layers]
    expected = ["Conv", "Positions", "FirstTokens", "AddPositions", "Residual", "Residual"]
    assert kinds == [*expected, "Token", "Dense"]
    first, added = found.net.layers[2:4]
    assert isinstance(first, kernels.FirstTokens)
    assert isinstance(added, kernels.AddPositions)
    np.testing.assert_allclose(
        first.covariance, [[float(model.first.detach().square().mean())]], rtol=1e-6
    )
    rows = model.positions.detach()[0].double().square().mean(1).numpy()
    np.testing.assert_allclose(added.covariance, np.diag(rows), rtol=1e-6)
    assert found(x).ntk.shape == (2, 2)


class Gated(nn.Module):
    """A gated MLP with an RMS norm that is written out, as in Llama."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.embed = nn.Linear(6, n)
        self.gain = nn.Parameter(torch.full((n,), 1.5))
        self.up, self.gate, self.down = nn.Linear(n, n), nn.Linear(n, n), nn.Linear(n, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = self.gain * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6))
        gate = self.gate(h)
        return self.down(self.up(h) * (gate * torch.sigmoid(gate)))


def test_gates_and_norms_that_are_written_out():
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    measured, predicted = [], []
    for _ in range(8):
        model = Gated(128).eval()
        kernel = o1.kernel_from_module(model, x)(x)
        measured.append([o1.empirical_nngp(model, x, outputs="mean").numpy(), scaled_ntk(model, x)])
        predicted.append([np.asarray(kernel.nngp), np.asarray(kernel.ntk)])
    layers = o1.kernel_from_module(Gated(8).eval(), x).net.layers
    kinds = [type(layer).__name__ for layer in layers]
    assert kinds == ["Dense", "RMSNorm", "Scale", "Product", "Dense"]
    mean, theory = np.mean(measured, 0), np.mean(predicted, 0)
    error = np.std(measured, 0, ddof=1) / 8**0.5
    scale = theory.max(axis=(1, 2), keepdims=True)
    assert (abs(mean - theory) < 4 * error + 0.04 * scale).all()


def test_activations_that_are_written_out():
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 32), nn.Linear(32, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.b(0.5 * h * (1 + torch.erf(h / 2**0.5)))

    torch.manual_seed(0)
    model = Written().eval()
    plain = nn.Sequential(model.a, nn.GELU(), model.b).eval()
    x = torch.randn(3, 4)
    np.testing.assert_allclose(
        o1.kernel_from_module(model, x)(x).ntk, o1.kernel_from_module(plain, x)(x).ntk, rtol=1e-5
    )


class Biased(nn.Module):
    """Attention with a distance penalty, which has no entry."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).transpose(-2, -1)
        return (scores - torch.arange(3.0)).softmax(-1) @ self.v(x)


def test_shared_weights_and_added_scores_are_named():
    x = torch.randn(1, 3, 4)
    with refuses("no-infinite-width", argument="model") as caught:
        o1.kernel_from_module(Biased().eval(), x)
    assert "sub" in str(caught.value)
    shared = Biased().eval()
    shared.k = shared.q
    with refuses("no-infinite-width", argument="model") as caught:
        o1.kernel_from_module(shared, x)
    assert "q.weight" in str(caught.value)
