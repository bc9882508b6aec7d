"""The networks of section 5 of S1 ("Mean field theory for deep dropout networks"): L layers of tanh
and a readout, with dropout masks on the outputs of hidden layers.

    z^l = W^l (p^l / keep) y^(l-1) + b^l,    y^l = tanh z^l,    S1 (1)

Weights are Gaussian of variance sigma_w^2 / fan-in, or sigma_w times a random orthogonal matrix.
All hidden matrices are one tensor, so that an optimizer updates 250 layers at once. Masks are an
input, because a captured step cannot draw random numbers.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

CLASSES = 10


@dataclass(frozen=True)
class Drawing:
    """Settings of the initial weights."""

    inputs: int
    width: int
    depth: int  # hidden layers, the first one included
    bias_var: float
    orthogonal: bool


class DeepTanh(nn.Module):
    def __init__(self, first: Tensor, hidden: Tensor, last: Tensor, biases: Tensor, end: Tensor):
        super().__init__()
        self.first: nn.Parameter = nn.Parameter(first)
        self.hidden: nn.Parameter = nn.Parameter(hidden)
        self.last: nn.Parameter = nn.Parameter(last)
        self.biases: nn.Parameter = nn.Parameter(biases)
        self.end: nn.Parameter = nn.Parameter(end)

    def forward(self, x: Tensor, masks: Tensor | None = None) -> Tensor:
        """Return logits; `masks` are (layers, batch, width), 0 or 1 / keep, or None."""
        if masks is None:
            layer_masks = [None] * len(self.biases)
        else:
            layer_masks = masks.unbind()
        for weight, bias, mask in zip(
            (self.first, *self.hidden.unbind()), self.biases.unbind(), layer_masks, strict=True
        ):
            y = torch.tanh(functional.linear(x, weight, bias))
            x = y if mask is None else y * mask
        return functional.linear(x, self.last, self.end)


def draw_networks(
    drawing: Drawing, weight_vars: list[float], generator: Generator
) -> list[DeepTanh]:
    """Return one network for each variance, on the generator's device."""
    shape = (drawing.depth - 1, drawing.width, drawing.width)
    if drawing.orthogonal:
        common = _orthogonal(*shape, generator=generator)
    else:
        common = None
    return [_network(drawing, weight_var**0.5, common, generator) for weight_var in weight_vars]


def _network(
    drawing: Drawing, size: float, common: Tensor | None, generator: Generator
) -> DeepTanh:
    inputs = drawing.inputs
    width = drawing.width
    depth = drawing.depth
    hidden = _normal(depth - 1, width, width, generator=generator) * width**-0.5
    ends = (
        _normal(width, inputs, generator=generator) * inputs**-0.5,
        _normal(CLASSES, width, generator=generator),
    )
    if common is not None:
        hidden = _shuffled(common, generator)
    biases = [
        drawing.bias_var**0.5 * _normal(*shape, generator=generator)
        for shape in ((depth, width), (CLASSES,))
    ]
    return DeepTanh(size * ends[0], size * hidden, size * width**-0.5 * ends[1], *biases)


def _normal(*shape: int, generator: Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def _orthogonal(*shape: int, generator: Generator) -> Tensor:
    """Draw uniformly from the orthogonal group; on the CPU, which is faster for small matrices."""
    q, r = torch.linalg.qr(_normal(*shape, generator=generator).cpu())
    return (q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)).to(generator.device)


def _shuffled(matrices: Tensor, generator: Generator) -> Tensor:
    """Permute rows and flip signs at random: the result is uniform too, and much cheaper."""
    order = torch.rand(matrices.shape[:2], generator=generator, device=matrices.device).argsort(-1)
    signs = torch.randint(2, order.shape, generator=generator, device=matrices.device) * 2 - 1
    return torch.take_along_dim(matrices, order.unsqueeze(-1), 1) * signs.unsqueeze(-1)
