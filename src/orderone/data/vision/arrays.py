"""Images and labels in memory: bytes (n, channels, height, width) and classes (n,)."""

from dataclasses import dataclass

import torch
from torch import Tensor


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
            raise ValueError(
                "images: expected bytes (n, channels, height, width) and n classes, got"
                f" {images.dtype} of {tuple(images.shape)} and {tuple(labels.shape)}; multiply"
                " images in [0, 1] by 255 and round them"
            )
        if labels.is_floating_point() or labels.min() < 0:
            raise ValueError(
                f"labels: expected classes 0, 1, ..., got {labels.dtype} from {labels.min()}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, indices: slice | Tensor) -> "Arrays":
        """Return some of the images."""
        return Arrays(self.images[indices], self.labels[indices])


def moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of every channel, in units of 255.

    They are exact, from how often each byte occurs.
    """
    values = torch.arange(256, dtype=torch.float64)
    histograms = [torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]
    counts = torch.stack(histograms).double()
    mean = counts @ values / counts.sum(1)
    variance = (counts * (values - mean[:, None]) ** 2).sum(1) / counts.sum(1)
    std = (variance.sqrt() / 255).float().clamp_min(1e-6)  # one grey image has no deviation
    return (mean / 255).float(), std
