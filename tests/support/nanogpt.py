"""A small GPT in the style of nanoGPT: one packed projection, tied embeddings, no depth tricks.

`packing` chooses how queries, keys and values lie in one tensor. "separate" is the same network
with three projections.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 48
CONTEXT = 12
LAYERS = 2


def rows_of(packing: str, width: int, heads: int) -> dict[str, Tensor]:
    """Return the rows of queries, keys and values in the packed matrix."""
    rows = torch.arange(3 * width)
    if packing == "by head":  # GPT-NeoX: [head, 3, head size]
        parts = rows.view(heads, 3, width // heads).unbind(1)
    elif packing == "values first":
        parts = rows.view(3, width).roll(-1, 0).unbind(0)
    else:
        parts = rows.view(3, width).unbind(0)
    return dict(zip("qkv", (part.reshape(-1) for part in parts), strict=True))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool, packing: str, eager: bool):
        super().__init__()
        self.heads = heads
        self.packing = packing
        self.eager = eager
        self.c_proj = nn.Linear(width, width, bias=bias)
        if packing == "separate":
            self.q = nn.Linear(width, width, bias=bias)
            self.k = nn.Linear(width, width, bias=bias)
            self.v = nn.Linear(width, width, bias=bias)
        else:
            self.c_attn = nn.Linear(width, 3 * width, bias=bias)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.packing == "separate":
            return self.q(x), self.k(x), self.v(x)
        y = self.c_attn(x)
        batch, time, width = x.shape
        if self.packing == "by head":
            q, k, v = y.view(batch, time, self.heads, 3, -1).unbind(3)
            return tuple(part.reshape(batch, time, width) for part in (q, k, v))
        if self.packing == "values first":
            v, q, k = y.reshape(batch, time, 3, width).unbind(2)
            return q, k, v
        return y.split(width, dim=2)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.parts(x)
        )
        if self.eager:
            scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
            hidden = torch.ones(time, time, dtype=torch.bool).triu(1)
            y = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, time, width))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool, packing: str, eager: bool):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.attn = Attention(width, heads, bias, packing, eager)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_proj = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(functional.gelu(self.c_fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    def __init__(
        self,
        width: int,
        heads: int = 2,
        bias: bool = True,
        packing: str = "packed",
        eager: bool = False,
        std: float = 0.02,
    ):
        super().__init__()
        self.packing = packing
        self.wte = nn.Embedding(VOCABULARY, width)
        self.wpe = nn.Embedding(CONTEXT, width)
        self.h = nn.ModuleList([Layer(width, heads, bias, packing, eager) for _ in range(LAYERS)])
        self.ln_f = nn.LayerNorm(width, bias=bias)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                # as published: the end of a residual branch starts smaller in deeper models
                last = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, std=std / (2 * LAYERS) ** 0.5 if last else std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        for layer in self.h:
            x = layer(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tokens(seed: int = 0, batch: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (batch, CONTEXT), generator=generator)


def unpacked(model: NanoGPT, heads: int = 2) -> dict[str, Tensor]:
    """Return the tensors of a packed model under the names of the separate one."""
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if "c_attn" not in name:
            state[name] = tensor.clone()
            continue
        for part, rows in rows_of(model.packing, model.wte.embedding_dim, heads).items():
            state[name.replace("c_attn", part)] = tensor[rows].clone()
    return state
