"""Small healthy networks of many kinds, each as a function of its width, with a batch to train on.

They are written here from scratch, in plain PyTorch, and no test of the library uses them. Heads
have 8 channels and grow in number unless the name says otherwise.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH, CLASSES, FEATURES, HEAD = 60, 12, 10, 24, 8


@dataclass(frozen=True)
class Architecture:
    """A network as a function of its width, a batch, and a loss if it is not the usual one."""

    build: Callable[[int], nn.Module]
    batch: tuple[Tensor, Tensor]
    loss: Callable[[Any, Tensor], Tensor] | None = None
    widths: tuple[int, ...] = (32, 64, 128, 256)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _tokens() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, VOCABULARY, (8, LENGTH + 1), generator=_generator())
    return ids[:, :-1], ids[:, 1:]


def _numbers() -> tuple[Tensor, Tensor]:
    x = torch.randn(48, FEATURES, generator=_generator())
    return x, x[:, :CLASSES].argmax(-1)


def _series() -> tuple[Tensor, Tensor]:
    x = torch.randn(12, LENGTH, FEATURES, generator=_generator())
    return x, x.mean(1)[:, :CLASSES].argmax(-1)


def _images() -> tuple[Tensor, Tensor]:
    x = torch.randn(12, 3, 8, 8, generator=_generator())
    return x, torch.arange(12) % CLASSES


TOKENS, NUMBERS, SERIES, IMAGES = _tokens(), _numbers(), _series(), _images()


# --- plain networks -------------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        return self.head(torch.relu(self.third(x)))


class Dueling(nn.Module):
    """Two heads, the value of a state and the advantage of each action."""

    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.body = nn.Linear(width, width)
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.body(torch.relu(self.inp(x))))
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(-1, keepdim=True)


class Vae(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.deep = nn.Linear(width, width)
        self.mean = nn.Linear(width, 4)
        self.spread = nn.Linear(width, 4)
        self.dec = nn.Linear(4, width)
        self.wide = nn.Linear(width, width)
        self.out = nn.Linear(width, FEATURES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = torch.tanh(self.deep(torch.tanh(self.enc(x))))
        mean = self.mean(h)
        spread = self.spread(h)
        noise = torch.sin(torch.arange(mean.numel(), dtype=x.dtype) * 7.3).view_as(mean)
        z = mean + noise * torch.exp(0.5 * spread)
        return self.out(torch.tanh(self.wide(torch.tanh(self.dec(z))))), mean, spread


def _vae_loss(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    y, mean, spread = output
    divergence = 0.5 * (mean**2 + spread.exp() - spread - 1).mean()
    return (y - NUMBERS[0]).square().mean() + 0.1 * divergence


class Towers(nn.Module):
    """Two towers whose features are compared by their angle, with a learned temperature."""

    def __init__(self, width: int):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width))
        self.right = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width))
        self.left_head = nn.Linear(width, width, bias=False)
        self.right_head = nn.Linear(width, width, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        a = functional.normalize(self.left_head(torch.relu(self.left(x))), dim=-1)
        b = functional.normalize(self.right_head(torch.relu(self.right(x.flip(-1)))), dim=-1)
        return self.scale.exp() * a @ b.T


def _matching(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, torch.arange(len(output)))


class Hyper(nn.Module):
    """A small network writes the gains of a large one."""

    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.code = nn.Linear(FEATURES, 8)
        self.gains = nn.Linear(8, width)
        self.hid = nn.Linear(width, width)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        gains = self.gains(torch.tanh(self.code(x)))
        return self.out(torch.relu(self.hid(torch.relu(self.inp(x)) * (1 + gains))))


class Lora(nn.Module):
    """A frozen hidden matrix with a trained path of rank 4 that starts at zero."""

    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.hid = nn.Linear(width, width)
        self.hid.requires_grad_(False)
        self.down = nn.Linear(width, 4, bias=False)
        self.up = nn.Linear(4, width, bias=False)
        nn.init.zeros_(self.up.weight)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.inp(x))
        return self.out(torch.relu(self.hid(x) + self.up(self.down(x))))


class Messages(nn.Module):
    """Message passing on a ring of nodes."""

    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.near = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.inp(x))
        for own, near in zip(self.own, self.near, strict=True):
            neighbours = 0.5 * (x.roll(1, 1) + x.roll(-1, 1))
            x = torch.relu(own(x) + near(neighbours))
        return self.out(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(torch.relu(self.inp(x)))[0][:, -1])


class Scan(nn.Module):
    """A selective scan with its skip, as in Mamba."""

    def __init__(self, width: int, states: int = 4):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, width)
        self.step = nn.Linear(width, width)
        self.into = nn.Linear(width, states, bias=False)
        self.out_of = nn.Linear(width, states, bias=False)
        self.rate = nn.Parameter(torch.zeros(width, states))
        self.skip = nn.Parameter(torch.ones(width))
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        y = self.norm(x)
        step = functional.softplus(self.step(y)).unsqueeze(-1)
        decay = torch.exp(-step * self.rate.exp())
        drive = step * self.into(y).unsqueeze(-2) * y.unsqueeze(-1)
        state = torch.zeros_like(drive[:, 0])
        outputs = []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + drive[:, t]
            outputs.append((state * self.out_of(y)[:, t].unsqueeze(-2)).sum(-1))
        mixed = torch.stack(outputs, 1) + self.skip * y
        return self.head((x + self.mix(mixed * functional.silu(self.gate(y)))).mean(1))


# --- images ---------------------------------------------------------------------------------------


class GroupNormResnet(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.last = nn.GroupNorm(4, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = x + conv(torch.relu(norm(x)))
        return self.head(self.last(x).mean((-1, -2)))


class ConvNext(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, stride=2)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.gain = nn.Parameter(torch.full((width,), 0.1))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.gain * self.down(functional.gelu(self.up(self.norm(y))))
        x = x.permute(0, 2, 3, 1) + y
        return self.head(self.last(x.mean((1, 2))))


class Unet(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join = nn.Conv2d(2 * width, width, 3, padding=1)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.deep(torch.relu(self.down(x))))
        y = torch.cat([x, torch.relu(self.up(y))], 1)
        return self.head(torch.relu(self.join(y))).mean((-1, -2))


class Mixer(nn.Module):
    """Tokens are mixed by matrices of fixed size, channels by matrices that grow."""

    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.one = nn.LayerNorm(width)
        self.mix = nn.Linear(LENGTH, LENGTH)
        self.two = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        x = x + functional.gelu(self.mix(self.one(x).transpose(1, 2))).transpose(1, 2)
        x = x + self.down(functional.gelu(self.up(self.two(x))))
        return self.head(self.last(x).mean(1))


class Fourier(nn.Module):
    """A Fourier neural operator with real weights for the real and imaginary parts."""

    def __init__(self, width: int, modes: int = 4):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.real = nn.Parameter(torch.randn(modes, width, width) / math.sqrt(width))
        self.imaginary = nn.Parameter(torch.randn(modes, width, width) / math.sqrt(width))
        self.local = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)
        self.modes = modes

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        waves = torch.fft.rfft(x, dim=1, norm="ortho")[:, : self.modes]
        real = torch.einsum("bmi,mij->bmj", waves.real, self.real)
        real = real - torch.einsum("bmi,mij->bmj", waves.imag, self.imaginary)
        imaginary = torch.einsum("bmi,mij->bmj", waves.real, self.imaginary)
        imaginary = imaginary + torch.einsum("bmi,mij->bmj", waves.imag, self.real)
        waves = torch.complex(real, imaginary)
        y = torch.fft.irfft(waves, n=x.shape[1], dim=1, norm="ortho")
        return self.head(functional.gelu(y + self.local(x)).mean(1))


# --- Transformers ---------------------------------------------------------------------------------


class Attention(nn.Module):
    """Causal attention; `kind` changes one thing in it."""

    def __init__(self, width: int, kind: str = "plain", heads: int | None = None):
        super().__init__()
        self.heads = heads or width // HEAD
        self.kind = kind
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        if kind == "qk-norm":
            self.q_norm = nn.LayerNorm(width // self.heads)
            self.k_norm = nn.LayerNorm(width // self.heads)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k = self.k(memory).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        v = self.v(memory).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if self.kind == "linear":
            q = functional.elu(q) + 1
            k = functional.elu(k) + 1
            mixed = (q @ (k.transpose(-1, -2) @ v)) / (q @ k.sum(-2).unsqueeze(-1))
            return self.o(mixed.transpose(1, 2).flatten(-2))
        if self.kind == "qk-norm":
            q = self.q_norm(q)
            k = self.k_norm(k)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if self.kind == "alibi":
            places = torch.arange(scores.shape[-1])
            slopes = 2.0 ** -torch.linspace(1, 8, self.heads)
            distance = (places[:, None] - places[None]).abs()
            scores = scores - slopes[:, None, None] * distance
        if self.kind != "cross":
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))


class Feed(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class Experts(nn.Module):
    """The best two of four experts for every token."""

    def __init__(self, width: int):
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(Feed(width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        top = weights.topk(2, -1)
        gates = torch.zeros_like(weights).scatter(-1, top.indices, top.values)
        outputs = torch.stack([expert(x) for expert in self.experts], -1)
        return (outputs * gates.unsqueeze(-2)).sum(-1)


class Block(nn.Module):
    def __init__(self, width: int, style: str):
        super().__init__()
        self.style = style
        self.one = nn.LayerNorm(width)
        self.two = nn.LayerNorm(width)
        kinds = {"qk-norm", "alibi", "linear"}
        self.attn = Attention(width, style if style in kinds else "plain")
        self.mlp = Experts(width) if style == "experts" else Feed(width)
        if style == "layer scale":
            self.gain_one = nn.Parameter(torch.full((width,), 0.1))
            self.gain_two = nn.Parameter(torch.full((width,), 0.1))
        if style == "sandwich":
            self.after_one = nn.LayerNorm(width)
            self.after_two = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        if self.style == "parallel":
            y = self.one(x)
            return x + self.attn(y) + self.mlp(y)
        if self.style == "deepnorm":
            x = self.one(1.4 * x + self.attn(x))
            return self.two(1.4 * x + self.mlp(x))
        if self.style == "layer scale":
            x = x + self.gain_one * self.attn(self.one(x))
            return x + self.gain_two * self.mlp(self.two(x))
        if self.style == "sandwich":
            x = x + self.after_one(self.attn(self.one(x)))
            return x + self.after_two(self.mlp(self.two(x)))
        x = x + self.attn(self.one(x))
        return x + self.mlp(self.two(x))


class Transformer(nn.Module):
    def __init__(self, width: int, style: str = "plain"):
        super().__init__()
        self.style = style
        if style == "factorised":
            self.table = nn.Embedding(VOCABULARY, 8)
            self.project = nn.Linear(8, width)
        else:
            self.table = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.5 * torch.randn(LENGTH, width))
        layers = 1 if style == "universal" else 2
        self.blocks = nn.ModuleList(Block(width, style) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        if self.style == "factorised":
            x = self.project(x)
        x = x + self.places
        for _ in range(2 if self.style == "universal" else 1):
            for block in self.blocks:
                x = block(x)
        return self.head(self.last(x))


class Perceiver(nn.Module):
    """Six learned vectors read the tokens."""

    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.latents = nn.Parameter(torch.randn(6, width))
        self.norm = nn.LayerNorm(width)
        self.read = Attention(width, "cross")
        self.two = nn.LayerNorm(width)
        self.mlp = Feed(width)
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.latents.expand(len(x), -1, -1)
        y = y + self.read(self.norm(y), self.inp(x))
        y = y + self.mlp(self.two(y))
        return self.head(self.last(y).mean(1))


class Dit(nn.Module):
    """Diffusion Transformer: a condition sets shift, gain and gate of branches, zero at first."""

    def __init__(self, width: int):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.condition = nn.Linear(1, width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attn = Attention(width, "cross")
        self.mlp = Feed(width)
        self.modulation = nn.Linear(width, 6 * width)
        self.last_modulation = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, FEATURES)
        for layer in (self.modulation, self.last_modulation):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        c = functional.silu(self.condition(x[:, :1, :1]))
        s1, g1, a1, s2, g2, a2 = self.modulation(c).chunk(6, -1)
        x = self.inp(x)
        x = x + a1 * self.attn(self.norm(x) * (1 + g1) + s1)
        x = x + a2 * self.mlp(self.norm(x) * (1 + g2) + s2)
        shift, gain = self.last_modulation(c).chunk(2, -1)
        return self.head(self.norm(x) * (1 + gain) + shift)


def _denoise(output: Tensor, target: Tensor) -> Tensor:
    return (output - SERIES[0].roll(1, 1)).square().mean()


def _transformer(style: str) -> Architecture:
    return Architecture(lambda width: Transformer(width, style), TOKENS)


ARCHITECTURES: dict[str, Architecture] = {
    "mlp": Architecture(Mlp, NUMBERS),
    "dueling heads": Architecture(Dueling, NUMBERS),
    "vae": Architecture(Vae, NUMBERS, _vae_loss),
    "two towers": Architecture(Towers, NUMBERS, _matching),
    "hypernetwork": Architecture(Hyper, NUMBERS),
    "lora": Architecture(Lora, NUMBERS),
    "message passing": Architecture(Messages, SERIES),
    "gru": Architecture(Recurrent, SERIES),
    "selective scan": Architecture(Scan, SERIES),
    "groupnorm resnet": Architecture(GroupNormResnet, IMAGES, widths=(16, 32, 64, 128)),
    "convnext": Architecture(ConvNext, IMAGES),
    "u-net": Architecture(Unet, IMAGES, widths=(16, 32, 64, 128)),
    "mixer": Architecture(Mixer, SERIES),
    "fourier operator": Architecture(Fourier, SERIES),
    "transformer": _transformer("plain"),
    "parallel attention": _transformer("parallel"),
    "qk-norm": _transformer("qk-norm"),
    "alibi": _transformer("alibi"),
    "linear attention": _transformer("linear"),
    "top-k experts": _transformer("experts"),
    "layer scale": _transformer("layer scale"),
    "deepnorm": _transformer("deepnorm"),
    "sandwich norm": _transformer("sandwich"),
    "factorised embedding": _transformer("factorised"),
    "universal transformer": _transformer("universal"),
    "perceiver": Architecture(Perceiver, SERIES),
    "dit": Architecture(Dit, SERIES, _denoise),
}
