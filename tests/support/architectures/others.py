"""Networks of images, vectors, graphs and pairs."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from support.architectures.architecture import (
    BATCH,
    CHANNELS,
    CLASSES,
    FEATURES,
    IMAGE,
    LENGTH,
    PICTURES,
    SEQUENCES,
    VECTORS,
    VOCAB,
    Architecture,
    integers,
    normal,
)
from support.architectures.sequences import Attention, mlp

HEAD_ROLES = {"head.weight": "readout", "head.bias": "fixed"}
REST = {"*.bias": "vector", "*.weight": "hidden"}


# --- images ---------------------------------------------------------------------------------------


class Mixer(nn.Module):
    """MLPs mix tokens, whose number is fixed, and channels in turn."""

    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.norm1 = nn.LayerNorm(width)
        self.tokens = mlp(LENGTH)
        self.norm2 = nn.LayerNorm(width)
        self.channels = mlp(width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channels(self.norm2(x))
        return self.head(self.norm(x).mean(1))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.mlp = mlp(width)
        self.scale = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.mlp(y)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Depthwise filters, pointwise matrices, and a coarser stage of twice the width."""

    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Conv2d(CHANNELS, width, 2, stride=2)
        self.stage1 = ConvNeXtBlock(width)
        self.coarsen = nn.Conv2d(width, 2 * width, 2, stride=2)
        self.stage2 = ConvNeXtBlock(2 * width)
        self.norm = nn.LayerNorm(2 * width)
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage2(self.coarsen(self.stage1(self.stem(x))))
        return self.head(self.norm(x.mean((2, 3))))


class GroupNormBlock(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(y)))


class GroupNormResNet(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Conv2d(CHANNELS, width, 3, padding=1, stride=2, bias=False)
        self.norm = nn.GroupNorm(4, width)
        self.blocks = nn.Sequential(GroupNormBlock(width), GroupNormBlock(width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(torch.relu(self.norm(self.stem(x))))
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    """Down, up, and a skip connection that is concatenated."""

    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Conv2d(CHANNELS, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, padding=1, stride=2)
        self.middle = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join = nn.Conv2d(2 * width, width, 3, padding=1)
        self.head = nn.Conv2d(width, CHANNELS, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = functional.silu(self.stem(x))
        x = functional.silu(self.middle(functional.silu(self.down(skip))))
        x = torch.cat([skip, functional.silu(self.up(x))], 1)
        return self.head(functional.silu(self.join(x)))


class RegisterViT(nn.Module):
    """A ViT with a class token and registers, which are parameters of the model itself."""

    PATCH = 4

    def __init__(self, width: int):
        super().__init__()
        patches = (IMAGE // self.PATCH) ** 2
        self.embed = nn.Conv2d(CHANNELS, width, self.PATCH, self.PATCH)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.registers = nn.Parameter(torch.randn(1, 3, width))
        self.place = nn.Parameter(torch.randn(1, patches, width))
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = mlp(width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2) + self.place
        extra = torch.cat([self.cls, self.registers], 1).expand(x.shape[0], -1, -1)
        x = torch.cat([extra, x], 1)
        y = self.norm1(x)
        x = x + self.attention(y, y)
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm(x[:, 0]))


class FourierLayer(nn.Module):
    """A convolution of the lowest modes, by complex weights, beside a pointwise matrix."""

    MODES = 3

    def __init__(self, width: int):
        super().__init__()
        weight = torch.randn(width, width, self.MODES, dtype=torch.cfloat) / math.sqrt(width)
        self.spectral = nn.Parameter(weight)
        self.pointwise = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(x, dim=1, norm="ortho")
        mixed = torch.einsum("bmi,iom->bmo", modes[:, : self.MODES], self.spectral)
        missing = modes.shape[1] - self.MODES
        mixed = functional.pad(mixed, (0, 0, 0, missing))
        smooth = torch.fft.irfft(mixed, n=x.shape[1], dim=1, norm="ortho")
        return functional.gelu(smooth + self.pointwise(x))


class FNO(nn.Module):
    """A Fourier neural operator."""

    def __init__(self, width: int):
        super().__init__()
        self.lift = nn.Linear(FEATURES, width)
        self.layers = nn.Sequential(FourierLayer(width), FourierLayer(width))
        self.head = nn.Linear(width, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.lift(x)))


# --- graphs, pairs and heads ----------------------------------------------------------------------


class MessagePassing(nn.Module):
    """Messages from both ends of every edge, averaged at the nodes."""

    def __init__(self, width: int):
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = torch.relu(self.embed(nodes))
        start, end = edges
        for _ in range(2):
            messages = torch.relu(self.message(torch.cat([x[start], x[end]], -1)))
            received = torch.zeros_like(x).index_add(0, end, messages) / 2
            x = x + torch.relu(self.update(torch.cat([x, received], -1)))
        return self.head(x)


class TwoTowers(nn.Module):
    """Pictures and texts in one space of fixed size, compared by angle (CLIP)."""

    SPACE = 16

    def __init__(self, width: int):
        super().__init__()
        self.pixels = nn.Linear(CHANNELS * IMAGE * IMAGE, width)
        self.image = mlp(width)
        self.words = nn.Embedding(VOCAB, width)
        self.text = mlp(width)
        self.image_out = nn.Linear(width, self.SPACE, bias=False)
        self.text_out = nn.Linear(width, self.SPACE, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        image = self.image_out(self.image(self.pixels(images.flatten(1))))
        text = self.text_out(self.text(self.words(ids).mean(1)))
        image = functional.normalize(image, dim=-1)
        text = functional.normalize(text, dim=-1)
        return self.logit_scale.exp() * image @ text.T


class VAE(nn.Module):
    """Encoder and decoder, with a random code of fixed size between them."""

    CODE = 4

    def __init__(self, width: int):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.mean = nn.Linear(width, self.CODE)
        self.log_variance = nn.Linear(width, self.CODE)
        self.decoder = nn.Sequential(
            nn.Linear(self.CODE, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.head = nn.Linear(width, FEATURES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean = self.mean(hidden)
        log_variance = self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.head(self.decoder(code)), mean, log_variance


def evidence_bound(output: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the loss of a VAE, per feature."""
    reconstructed, mean, log_variance = output
    distance = mean.square() + log_variance.exp() - log_variance - 1
    return (reconstructed - target).square().mean() + distance.mean() / 2


class Dueling(nn.Module):
    """Values of actions as the value of the state plus an advantage (dueling DQN)."""

    def __init__(self, width: int):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.value = nn.Linear(width, 1)
        self.advantage = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(-1, keepdim=True)


def _graph() -> tuple[tuple[Tensor, Tensor], Tensor]:
    nodes = normal(12, FEATURES)
    edges = torch.stack([torch.arange(12).repeat(2), integers(12, 24, seed=2)])
    return (nodes, edges), integers(CLASSES, 12, seed=3)


def _pairs() -> tuple[tuple[Tensor, Tensor], Tensor]:
    return (PICTURES[0], integers(VOCAB, BATCH, LENGTH)), torch.arange(BATCH)


OTHER_ARCHITECTURES = {
    "mixer": Architecture(
        Mixer,
        SEQUENCES,
        {
            "embed.weight": "embedding",
            "tokens.*": "fixed",
            "norm*": "vector",
            **HEAD_ROLES,
            **REST,
        },
    ),
    "convnext": Architecture(
        ConvNeXt,
        PICTURES,
        {
            "stem.weight": "embedding",
            "*.depthwise.weight": "vector",
            "*norm.weight": "vector",
            "*.scale": "vector",
            **HEAD_ROLES,
            **REST,
        },
    ),
    "groupnorm resnet": Architecture(
        GroupNormResNet,
        PICTURES,
        {"stem.weight": "embedding", "*norm*": "vector", **HEAD_ROLES, **REST},
    ),
    "unet": Architecture(
        UNet,
        (PICTURES[0], PICTURES[0].roll(1, 0)),
        {"stem.weight": "embedding", **HEAD_ROLES, **REST},
    ),
    "vit with registers": Architecture(
        RegisterViT,
        PICTURES,
        {
            "embed.weight": "embedding",
            "cls": "vector",
            "registers": "embedding",
            "place": "embedding",
            "norm*": "vector",
            **HEAD_ROLES,
            **REST,
        },
    ),
    "fno": Architecture(
        FNO,
        (SEQUENCES[0], SEQUENCES[0].roll(1, 0)),
        {"lift.weight": "embedding", "*.spectral": "hidden", **HEAD_ROLES, **REST},
    ),
    "message passing": Architecture(
        MessagePassing, _graph(), {"embed.weight": "embedding", **HEAD_ROLES, **REST}
    ),
    "two towers": Architecture(
        TwoTowers,
        _pairs(),
        {
            "pixels.weight": "embedding",
            "words.weight": "embedding",
            "*_out.weight": "readout",
            "logit_scale": "fixed",
            **REST,
        },
    ),
    "vae": Architecture(
        VAE,
        (VECTORS[0], VECTORS[0]),
        {
            "encoder.0.weight": "embedding",
            "decoder.0.weight": "embedding",
            "mean.weight": "readout",
            "log_variance.weight": "readout",
            "mean.bias": "fixed",
            "log_variance.bias": "fixed",
            **HEAD_ROLES,
            **REST,
        },
        evidence_bound,
    ),
    "dueling": Architecture(
        Dueling,
        (VECTORS[0], normal(BATCH, CLASSES, seed=4)),
        {
            "trunk.0.weight": "embedding",
            "value.weight": "readout",
            "advantage.weight": "readout",
            "value.bias": "fixed",
            "advantage.bias": "fixed",
            **REST,
        },
    ),
}
