"""The weights of one layer of many networks, used on two inputs and then on two gradients.

    z = W x,    W^T delta        W_ij ~ N(0, v/N), the same W both times

`Drawn` weights are drawn. `Implied` weights are never drawn, but give the same distribution: z is
Gaussian given x, and once W is known on the span of x = (x_a, x_b), only its other directions are
free,

    W = z x^+ + W' (1 - P),    P the projection on the span of x,  W' a fresh copy of W

so that W^T delta = (x^+)^T z^T delta + (1 - P) W'^T delta, and W'^T delta is Gaussian given delta,
which is independent of W'. This takes 4 N numbers instead of N^2, and it is exact: forward and
backward passes share their weights.
"""

from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor


class Weights(ABC):
    """Weights of one layer; call `forward` once, then `backward`.

    x, z and delta have the shape (networks, 2, N), where 2 counts the inputs of a network.
    """

    def __init__(self, variance: float, generator: Generator):
        self.variance: float = variance
        self.generator: Generator = generator

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Return W x for both inputs."""

    @abstractmethod
    def backward(self, delta: Tensor) -> Tensor:
        """Return W^T delta for both inputs."""

    @staticmethod
    @abstractmethod
    def bytes(width: int, itemsize: int) -> int:
        """Return the memory of one layer of one network between the two passes."""

    def _normal(self, *shape: int, like: Tensor) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=like.dtype, device=like.device)


class Drawn(Weights):
    """Weights that are drawn and stored."""

    def forward(self, x: Tensor) -> Tensor:
        networks, _, N = x.shape
        self.W = self._normal(networks, N, N, like=x)
        return torch.bmm(x * (self.variance / N) ** 0.5, self.W.mT)

    def backward(self, delta: Tensor) -> Tensor:
        return torch.bmm(delta * (self.variance / delta.shape[-1]) ** 0.5, self.W)

    @staticmethod
    def bytes(width: int, itemsize: int) -> int:
        return width**2 * itemsize


class Implied(Weights):
    """Weights that are never drawn: only their images of inputs and gradients."""

    def forward(self, x: Tensor) -> Tensor:
        axes, coordinates = _axes(x)
        self.axes: Tensor = axes
        self.images: Tensor = self._images(x)
        return torch.bmm(coordinates, self.images)

    def backward(self, delta: Tensor) -> Tensor:
        known = torch.bmm(torch.bmm(delta, self.images.mT), self.axes)
        fresh = torch.bmm(_axes(delta)[1], self._images(delta))
        return known + fresh - torch.bmm(torch.bmm(fresh, self.axes.mT), self.axes)

    def _images(self, x: Tensor) -> Tensor:
        """Draw images of orthonormal vectors under an unknown matrix: independent Gaussians."""
        return self._normal(*x.shape, like=x) * (self.variance / x.shape[-1]) ** 0.5

    @staticmethod
    def bytes(width: int, itemsize: int) -> int:
        return 4 * width * itemsize


def _axes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (axes, coordinates) with x = coordinates @ axes.

    Axes are orthonormal, or zero where the rows of x are linearly dependent.
    """
    first, length = _unit(x[:, 0], torch.zeros_like(x[:, 0, :1]))
    along = (x[:, 1] * first).sum(-1, keepdim=True)
    rounding = (10 * torch.finfo(x.dtype).eps) ** 0.5
    tiny = rounding * x[:, 1].norm(dim=-1, keepdim=True)
    second, rest = _unit(x[:, 1] - along * first, tiny)
    coordinates = torch.cat([length, torch.zeros_like(length), along, rest], dim=-1).view(-1, 2, 2)
    return torch.stack([first, second], dim=1), coordinates


def _unit(x: Tensor, tiny: Tensor) -> tuple[Tensor, Tensor]:
    """Return x divided by its length, and the length; both are zero if the length is `tiny`."""
    length = x.norm(dim=-1, keepdim=True)
    length = torch.where(length > tiny, length, torch.zeros_like(length))
    divisor = torch.where(length > 0, length, torch.ones_like(length))
    return x / divisor * (length > 0), length
