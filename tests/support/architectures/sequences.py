"""Transformers and other networks of sequences."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from support.architectures.architecture import (
    CLASSES,
    FEATURES,
    HEAD,
    LENGTH,
    SEQUENCES,
    TEXT,
    TOPICS,
    VOCAB,
    Architecture,
)


def split_heads(x: Tensor, size: int = HEAD) -> Tensor:
    return x.unflatten(-1, (-1, size)).transpose(-2, -3)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(-2, -3).flatten(-2)


def causal_mask(length: int) -> Tensor:
    return torch.full((length, length), -math.inf).triu(1)


def mlp(width: int, factor: int = 2) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, factor * width), nn.GELU(), nn.Linear(factor * width, width)
    )


class Attention(nn.Module):
    """Causal self-attention; `context` makes it cross-attention without a mask."""

    def __init__(self, width: int):
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q = split_heads(self.q(x))
        k = split_heads(self.k(source))
        v = split_heads(self.v(source))
        return self.o(merge_heads(self.mix(q, k, v, causal=context is None)))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


class Language(nn.Module):
    """Tokens and positions in, blocks, a norm, logits out."""

    def __init__(self, width: int, block: Callable[[int], nn.Module], layers: int = 2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.place = nn.Parameter(torch.randn(LENGTH, width))
        self.blocks = nn.ModuleList([block(width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


LANGUAGE = {
    "embed.weight": "embedding",
    "place": "embedding",
    "norm.*": "vector",
    "head.weight": "readout",
    "head.bias": "fixed",
}
BLOCK = {
    "blocks.*norm*": "vector",
    "blocks.*.bias": "vector",
    "blocks.*.weight": "hidden",
}


def language(
    block: Callable[[int], nn.Module], roles: dict[str, str] | None = None, layers: int = 2
) -> Architecture:
    """Return a language model of these blocks; `roles` has the tensors that are not usual."""
    return Architecture(
        lambda width: Language(width, block, layers), TEXT, {**LANGUAGE, **(roles or {}), **BLOCK}
    )


# --- blocks of Transformers -----------------------------------------------------------------------


class ParallelBlock(nn.Module):
    """Attention and MLP read the same norm, and are added together (GPT-J)."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y) + self.mlp(y)


class PreNormBlock(nn.Module):
    def __init__(self, width: int, attention: Callable[[int], nn.Module] = Attention):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def with_attention(attention: Callable[[int], nn.Module]) -> Callable[[int], nn.Module]:
    return lambda width: PreNormBlock(width, attention)


class NormedAttention(Attention):
    """QK-norm: queries and keys are normalized in each head."""

    def __init__(self, width: int):
        super().__init__(width)
        self.q_gain = nn.RMSNorm(HEAD)
        self.k_gain = nn.RMSNorm(HEAD)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        return super().mix(self.q_gain(q), self.k_gain(k), v, causal)


class AlibiAttention(Attention):
    """ALiBi: scores fall linearly with the distance, with another slope in each head."""

    bias: Tensor

    def __init__(self, width: int):
        super().__init__(width)
        heads = width // HEAD
        slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
        distances = torch.arange(LENGTH)[None, :] - torch.arange(LENGTH)[:, None]
        bias = slopes[:, None, None] * distances + causal_mask(LENGTH)
        self.register_buffer("bias", bias)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD) + self.bias
        return scores.softmax(-1) @ v


class LinearAttention(Attention):
    """Attention without softmax: positive features of queries and keys, normalized."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        q = functional.elu(q) + 1
        k = functional.elu(k) + 1
        scores = (q @ k.transpose(-1, -2)).tril()
        return (scores @ v) / scores.sum(-1, keepdim=True)


class LayerScaleBlock(nn.Module):
    """Branches are multiplied by small learned gains (CaiT)."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.scale1 = nn.Parameter(0.1 * torch.ones(width))
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width)
        self.scale2 = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale1 * self.attention(self.norm1(x))
        return x + self.scale2 * self.mlp(self.norm2(x))


class DeepNormBlock(nn.Module):
    """Post-norm with a larger stream and smaller branches; both depend on the depth only."""

    LAYERS = 2

    def __init__(self, width: int):
        super().__init__()
        self.attention = Attention(width)
        self.norm1 = nn.LayerNorm(width)
        self.mlp = mlp(width)
        self.norm2 = nn.LayerNorm(width)
        self.alpha = (2 * self.LAYERS) ** 0.25
        beta = (8 * self.LAYERS) ** -0.25
        for layer in (self.attention.v, self.attention.o, self.mlp[0], self.mlp[2]):
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_normal_(layer.weight, gain=beta)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.alpha * x + self.attention(x))
        return self.norm2(self.alpha * x + self.mlp(x))


class SandwichBlock(nn.Module):
    """Norms before and after each branch (CogView, Gemma 2)."""

    def __init__(self, width: int):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(4)])
        self.attention = Attention(width)
        self.mlp = mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.norms[1](self.attention(self.norms[0](x)))
        return x + self.norms[3](self.mlp(self.norms[2](x)))


class GrowingHeadsAttention(nn.Module):
    """Heads are separate modules, and a wider model has more of them."""

    def __init__(self, width: int):
        super().__init__()
        self.heads = nn.ModuleList([Head(width) for _ in range(width // HEAD)])
        self.o = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.cat([head(x) for head in self.heads], -1))


class Head(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.q = nn.Linear(width, HEAD)
        self.k = nn.Linear(width, HEAD)
        self.v = nn.Linear(width, HEAD)

    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            self.q(x), self.k(x), self.v(x), is_causal=True
        )


class TopKMoE(nn.Module):
    """A mixture of experts: the router picks two of four."""

    EXPERTS = 4

    def __init__(self, width: int):
        super().__init__()
        self.router = nn.Linear(width, self.EXPERTS, bias=False)
        self.experts = nn.ModuleList([mlp(width) for _ in range(self.EXPERTS)])

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        values, chosen = weights.topk(2, -1)
        gates = torch.zeros_like(weights).scatter(-1, chosen, values)
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return (outputs * gates[..., None, :]).sum(-1)


class MoEBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.moe = TopKMoE(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.moe(self.norm2(x))


class StackedExperts(nn.Module):
    """All experts in one tensor; every expert sees every token."""

    def __init__(self, width: int, experts: int = 4):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / math.sqrt(2 * width))

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).softmax(-1)
        inner = functional.gelu(torch.einsum("bti,eio->bteo", x, self.up))
        outer = torch.einsum("bteo,eoi->btei", inner, self.down)
        return torch.einsum("btei,bte->bti", outer, gates)


class StackedExpertsBlock(MoEBlock):
    def __init__(self, width: int):
        super().__init__(width)
        self.moe = StackedExperts(width)


class MambaBlock(nn.Module):
    """A selective state space, scanned step by step (Mamba)."""

    STATE = 4

    def __init__(self, width: int):
        super().__init__()
        inner = 2 * width
        self.rank = width // 8
        self.norm = nn.LayerNorm(width)
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 3, padding=2, groups=inner)
        self.x_proj = nn.Linear(inner, self.rank + 2 * self.STATE, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        rates = torch.arange(1, self.STATE + 1.0).log().repeat(inner, 1)
        self.A_log = nn.Parameter(rates)
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.in_proj(self.norm(x)).chunk(2, -1)
        u = self.conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        u = functional.silu(u)
        dt, b, c = self.x_proj(u).split([self.rank, self.STATE, self.STATE], -1)
        dt = functional.softplus(self.dt_proj(dt))
        decay = (-dt[..., None] * self.A_log.exp()).exp()
        drive = (dt * u)[..., None] * b[..., None, :]
        state = torch.zeros_like(drive[:, 0])
        outputs = []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            outputs.append((state * c[:, t, None, :]).sum(-1))
        y = torch.stack(outputs, 1) + self.D * u
        return x + self.out_proj(y * functional.silu(gate))


class LowRank(nn.Module):
    """LoRA: a frozen matrix, and a product of two narrow ones that starts at zero."""

    RANK = 4

    def __init__(self, width: int):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.down = nn.Linear(width, self.RANK, bias=False)
        self.up = nn.Linear(self.RANK, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class LoraAttention(Attention):
    def __init__(self, width: int):
        super().__init__(width)
        self.q = LowRank(width)
        self.v = LowRank(width)
        self.k.requires_grad_(False)
        self.o.requires_grad_(False)


class LoraBlock(nn.Module):
    """Everything is frozen, except for the low-rank parts."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.attention = LoraAttention(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(self.norm(x))


# --- other networks -------------------------------------------------------------------------------


class Universal(Language):
    """Every layer has the same tensors (universal Transformer)."""

    def __init__(self, width: int):
        super().__init__(width, PreNormBlock, layers=1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.place
        for _ in range(3):
            x = self.blocks[0](x)
        return self.head(self.norm(x))


class Factorised(Language):
    """A narrow table of tokens, widened by a matrix (ALBERT)."""

    RANK = 8

    def __init__(self, width: int):
        super().__init__(width, PreNormBlock)
        self.embed = nn.Embedding(VOCAB, self.RANK)
        self.widen = nn.Linear(self.RANK, width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.widen(self.embed(ids)) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Perceiver(nn.Module):
    """Learned latents read the inputs by cross-attention."""

    LATENTS = 4

    def __init__(self, width: int):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(self.LATENTS, width))
        self.embed = nn.Linear(FEATURES, width)
        self.cross = Attention(width)
        self.norm1 = nn.LayerNorm(width)
        self.mlp = mlp(width)
        self.norm2 = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.expand(x.shape[0], -1, -1)
        latents = latents + self.cross(self.norm1(latents), self.embed(x))
        latents = latents + self.mlp(self.norm2(latents))
        return self.head(latents.mean(1))


class GatedRecurrent(nn.Module):
    """Two layers of nn.GRU, then a GRUCell over their outputs."""

    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.gru = nn.GRU(width, width, 2, batch_first=True)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        outputs = self.gru(self.embed(ids))[0]
        state = torch.zeros_like(outputs[:, 0])
        for t in range(ids.shape[1]):
            state = self.cell(outputs[:, t], state)
        return self.head(state)


class DiTBlock(nn.Module):
    """A block whose norms are shifted, scaled and gated by the condition (adaLN-zero)."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(width)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = mlp(width)
        self.modulation = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        parts = self.modulation(functional.silu(condition))[:, None].chunk(6, -1)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class DiT(nn.Module):
    """A diffusion Transformer: patches and a time in, patches out."""

    TIMES = 8

    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.place = nn.Parameter(torch.randn(LENGTH, width))
        self.time = nn.Sequential(
            nn.Linear(2 * self.TIMES, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.blocks = nn.ModuleList([DiTBlock(width) for _ in range(2)])
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, FEATURES)
        for layer in (self.modulation, self.head):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * 2.0 ** torch.arange(self.TIMES)
        condition = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x = self.embed(x) + self.place
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(functional.silu(condition))[:, None].chunk(2, -1)
        return self.head(self.norm(x) * (1 + scale) + shift)


def _noise() -> tuple[tuple[Tensor, Tensor], Tensor]:
    images = SEQUENCES[0]
    times = torch.linspace(0, 1, len(images))
    return (images, times), images.roll(1, 0)


PERCEIVER_ROLES = {
    "latents": "embedding",
    "embed.weight": "embedding",
    "head.weight": "readout",
    "head.bias": "fixed",
    "*.bias": "vector",
    "norm*": "vector",
    "*.weight": "hidden",
}
DIT_ROLES = {
    "embed.weight": "embedding",
    "place": "embedding",
    "time.0.weight": "embedding",
    "head.weight": "readout",
    "head.bias": "fixed",
    "*.bias": "vector",
    "*.weight": "hidden",
}
MAMBA_ROLES = {
    "blocks.*.conv.weight": "vector",
    "blocks.*.A_log": "vector",
    "blocks.*.D": "vector",
}
ROUTER = {"blocks.*.router.weight": "readout"}
EXPERTS = {**ROUTER, "blocks.*.moe.up": "hidden", "blocks.*.moe.down": "hidden"}
LORA_ROLES = {
    "blocks.*.down.weight": "readout",
    "blocks.*.up.weight": "embedding",
    "blocks.*": "fixed",
}

SEQUENCE_ARCHITECTURES = {
    "parallel attention": language(ParallelBlock),
    "qk-norm": language(with_attention(NormedAttention), {"*_gain.weight": "fixed"}),
    "alibi": language(with_attention(AlibiAttention)),
    "linear attention": language(with_attention(LinearAttention)),
    "layer scale": language(LayerScaleBlock, {"blocks.*.scale?": "vector"}),
    "deepnorm": language(DeepNormBlock),
    "sandwich norm": language(SandwichBlock),
    "growing list of heads": replace(  # hundreds of modules at larger widths
        language(with_attention(GrowingHeadsAttention), layers=1), widths=(16, 32, 64)
    ),
    "top-k experts": language(MoEBlock, ROUTER),
    "stacked experts": language(StackedExpertsBlock, EXPERTS),
    "selective scan": language(MambaBlock, MAMBA_ROLES),
    "lora": language(LoraBlock, LORA_ROLES),
    "universal transformer": Architecture(Universal, TEXT, {**LANGUAGE, **BLOCK}),
    "factorised embedding": Architecture(
        Factorised,
        TEXT,
        {
            **LANGUAGE,
            "embed.weight": "fixed",
            "widen.weight": "embedding",
            "widen.bias": "vector",
            **BLOCK,
        },
    ),
    "perceiver": Architecture(Perceiver, SEQUENCES, PERCEIVER_ROLES),
    "gru": Architecture(
        GatedRecurrent,
        TOPICS,
        {
            "embed.weight": "embedding",
            "head.weight": "readout",
            "head.bias": "fixed",
            "*bias_*": "vector",
            "*weight_*": "hidden",
        },
    ),
    "dit": Architecture(DiT, _noise(), DIT_ROLES),
}
