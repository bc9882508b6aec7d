"""Images and labels in memory: bytes (n, channels, height, width) and classes (n,)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from orderone.core.errors import InputError


@dataclass(frozen=True)
class Arrays:
    """Images with their classes."""

    images: Tensor  # uint8
    labels: Tensor  # int64

    def __post_init__(self) -> None:
        images = self.images
        labels = self.labels
        are_bytes = images.dim() == 4 and images.dtype == torch.uint8
        if not are_bytes or labels.shape != images.shape[:1] or not len(labels):
            message = (
                "source: expected images as bytes (n, channels, height, width) and n classes; got"
                f" {images.dtype} of {tuple(images.shape)} and {tuple(labels.shape)}; multiply"
                " images in [0, 1] by 255 and convert them to torch.uint8"
            )
            raise InputError(message, argument="source")
        if labels.is_floating_point() or labels.min() < 0:
            message = (
                "source: expected labels that are whole numbers 0, 1, ...; got"
                f" {labels.dtype} from {labels.min()}"
            )
            raise InputError(message, argument="source")

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, indices: slice | Tensor) -> "Arrays":
        """Return the images at these indices, with their classes."""
        return Arrays(self.images[indices], self.labels[indices])


def moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of every channel, in units of 255.

    Both are exact: they are computed from the histogram of bytes.
    """
    values = torch.arange(256, dtype=torch.float64)
    histograms = [torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]
    counts = torch.stack(histograms).double()
    mean = counts @ values / counts.sum(1)
    variance = (counts * (values - mean[:, None]) ** 2).sum(1) / counts.sum(1)
    std = (variance.sqrt() / 255).float().clamp_min(1e-6)  # a uniform image has zero
    return (mean / 255).float(), std
