"""Small models with free sizes, and sizes that are equal by accident."""

# pyright: reportArgumentType=false
# pyright: reportCallIssue=false
# pyright: reportIncompatibleMethodOverride=false

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model and its batch. Width and inner width grow, the others do not."""

    width: int = 16
    inner: int = 24
    classes: int = 7
    features: int = 5
    batch: int = 3

    def times(self, factor: int) -> "Sizes":
        return replace(self, width=factor * self.width, inner=factor * self.inner)

    @property
    def values(self) -> Tensor:
        return torch.randn(self.batch, self.features, dtype=torch.float64)

    @property
    def tokens(self) -> Tensor:
        return torch.randint(min(self.classes, 4), (self.batch, min(self.features, 4)))

    @property
    def images(self) -> Tensor:
        return torch.randn(self.batch, self.features, 4, 4, dtype=torch.float64)


@dataclass(frozen=True)
class Architecture:
    """A model as a function of its sizes, its batch, and the names of its readouts."""

    build: Callable[[Sizes], nn.Module]
    batch: Callable[[Sizes], Any]
    readouts: tuple[str, ...]


class Chain(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.read = nn.Linear(s.features, s.width)
        self.up = nn.Linear(s.width, s.inner)
        self.down = nn.Linear(s.inner, s.width)
        self.write = nn.Linear(s.width, s.classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.down(torch.relu(self.up(torch.relu(self.read(x))))))

    def forward(self, x: Tensor) -> Tensor:
        return self.write(self.features(x))


class EarlyHead(Chain):
    """The readout is defined before everything else."""

    def __init__(self, s: Sizes):
        nn.Module.__init__(self)
        self.write = nn.Linear(s.width, s.classes)
        self.read = nn.Linear(s.features, s.width)
        self.up = nn.Linear(s.width, s.inner)
        self.down = nn.Linear(s.inner, s.width)


class GatedHead(Chain):
    """The output is a product of two readouts."""

    def __init__(self, s: Sizes):
        super().__init__(s)
        self.gate = nn.Linear(s.width, s.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return self.write(x) * torch.sigmoid(self.gate(x))


class TwoTowers(Chain):
    """The output is the similarity of two inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return self.write(self.features(x)) @ self.write(self.features(x.flip(1))).T


class PolicyAndValue(EarlyHead):
    def __init__(self, s: Sizes):
        super().__init__(s)
        self.value = nn.Linear(s.width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.features(x)
        return functional.log_softmax(self.write(x), -1), torch.tanh(self.value(x))


class Block(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(s.width), nn.LayerNorm(s.width)])
        self.qkv = nn.Linear(s.width, 3 * s.width)
        self.out = nn.Linear(s.width, s.width)
        self.up = nn.Linear(s.width, s.inner)
        self.down = nn.Linear(s.inner, s.width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, n = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, 2, n // 2).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, n))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class LanguageModel(nn.Module):
    """Packed attention; the vocabulary counts as classes."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.tokens = nn.Embedding(s.classes, s.width)
        self.positions = nn.Embedding(s.features, s.width)
        self.blocks = nn.ModuleList(Block(s) for _ in range(2))
        self.norm = nn.LayerNorm(s.width)
        self.write = nn.Linear(s.width, s.classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.write(self.norm(h))


class Tied(LanguageModel):
    def __init__(self, s: Sizes):
        super().__init__(s)
        self.write.weight = self.tokens.weight


class TwoHeads(nn.Module):
    """Two heads, one of them defined before a stack with residual branches."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.write = nn.Linear(s.width, s.classes)
        self.read = nn.Linear(s.features, s.width)
        self.ups = nn.ModuleList(nn.Linear(s.width, s.inner) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(s.inner, s.width) for _ in range(2))
        self.box = nn.Sequential(nn.Linear(s.width, s.width), nn.ReLU(), nn.Linear(s.width, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.read(x)
        for up, down in zip(self.ups, self.downs, strict=True):
            h = h + down(torch.relu(up(h)))
        return self.write(h), self.box(h)


class ConvNet(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.read = nn.Conv2d(s.features, s.width, 3, padding=1)
        self.up = nn.Conv2d(s.width, s.inner, 3, padding=1)
        self.down = nn.Conv2d(s.inner, s.width, 1)
        self.write = self.head(s)

    def head(self, s: Sizes) -> nn.Module:
        return nn.Linear(s.width, s.classes)

    def features(self, x: Tensor) -> Tensor:
        x = torch.relu(self.read(x))
        return x + self.down(torch.relu(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.write(self.features(x).mean((2, 3)))


class DenseConvNet(ConvNet):
    """One class for every pixel."""

    def head(self, s: Sizes) -> nn.Module:
        return nn.Conv2d(s.width, s.classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.write(self.features(x))


class SequenceToSequence(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.source = nn.Embedding(13, s.width)
        self.target = nn.Embedding(s.classes, s.width)
        self.body = nn.Transformer(s.width, 2, 1, 1, s.inner, dropout=0.0, batch_first=True)
        self.write = nn.Linear(s.width, s.classes)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.write(self.body(self.source(source), self.target(target)))


class Recurrent(nn.Module):
    """The readout is defined before the recurrent layer."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.write = nn.Linear(s.inner, s.classes)
        self.tokens = nn.Embedding(11, s.width)
        self.layer = nn.GRU(s.width, s.inner, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.write(self.layer(self.tokens(x))[0])


class Experts(nn.Module):
    """Four experts in bare tensors, and a router."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.read = nn.Linear(s.features, s.width)
        self.router = nn.Linear(s.width, 4, bias=False)
        self.up = nn.Parameter(torch.randn(4, s.width, s.inner))
        self.down = nn.Parameter(torch.randn(4, s.inner, s.width))
        self.write = nn.Linear(s.width, s.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.read(x)
        weights = self.router(x).softmax(-1)
        inner = torch.relu(torch.einsum("bn,enm->bem", x, self.up))
        outputs = torch.einsum("bem,emn->ben", inner, self.down)
        return self.write(x + (weights[..., None] * outputs).sum(1))


class Denoiser(nn.Module):
    """The output is as large as the input, and another input comes first."""

    def __init__(self, s: Sizes):
        super().__init__()
        self.label = nn.Embedding(3, s.width)
        self.read = nn.Linear(s.features, s.width)
        self.up = nn.Linear(s.width, s.inner)
        self.down = nn.Linear(s.inner, s.width)
        self.write = nn.Linear(s.width, s.features)

    def forward(self, x: Tensor) -> Tensor:
        x = self.read(x) + self.label(torch.arange(len(x)) % 3)
        return self.write(torch.relu(self.down(torch.relu(self.up(x)))))


ARCHITECTURES: dict[str, Architecture] = {
    "chain": Architecture(Chain, lambda s: s.values, ("write",)),
    "early head": Architecture(EarlyHead, lambda s: s.values, ("write",)),
    "gated head": Architecture(GatedHead, lambda s: s.values, ("write", "gate")),
    "two towers": Architecture(TwoTowers, lambda s: s.values, ("write",)),
    "policy and value": Architecture(PolicyAndValue, lambda s: s.values, ("write", "value")),
    "language model": Architecture(LanguageModel, lambda s: s.tokens, ("write",)),
    "tied": Architecture(Tied, lambda s: s.tokens, ()),
    "two heads": Architecture(TwoHeads, lambda s: s.values, ("write", "box.2")),
    "convolutions": Architecture(ConvNet, lambda s: s.images, ("write",)),
    "dense convolutions": Architecture(DenseConvNet, lambda s: s.images, ("write",)),
    "sequence to sequence": Architecture(
        SequenceToSequence, lambda s: (s.tokens, s.tokens), ("write",)
    ),
    "recurrent": Architecture(Recurrent, lambda s: s.tokens, ("write",)),
    "experts": Architecture(Experts, lambda s: s.values, ("write",)),
    "denoiser": Architecture(Denoiser, lambda s: s.values, ("write",)),
}

# sizes that are equal, or multiples, by accident
ACCIDENTS: dict[str, Sizes] = {
    "classes = width": Sizes(classes=16),
    "classes = inner": Sizes(classes=24),
    "classes = 2 widths": Sizes(classes=32),
    "classes = small inner": Sizes(inner=4, classes=4),
    "classes = 2 small inner": Sizes(inner=4, classes=8),
    "classes = features": Sizes(classes=5),
    "features = width": Sizes(features=16),
    "features = inner": Sizes(features=24),
    "features = classes = width": Sizes(features=16, classes=16),
    "experts = inner": Sizes(inner=4),
    "experts = width": Sizes(width=4),
    "experts = batch": Sizes(batch=4),
    "heads = batch": Sizes(batch=2),
    "head size = length": Sizes(width=8, features=4),
    "batch = width": Sizes(batch=16),
    "batch = inner": Sizes(batch=24),
    "batch = features": Sizes(batch=5),
}
