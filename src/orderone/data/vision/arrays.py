"""Images and labels in memory: bytes (n, channels, height, width) and classes (n,)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Arrays:
    images: Tensor  # uint8
    labels: Tensor  # int64

    def __post_init__(self) -> None:
        images = self.images
        labels = self.labels
        if (
            images.dim() != 4
            or images.dtype != torch.uint8
            or labels.shape != images.shape[:1]
            or not len(labels)
        ):
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

    def part(self, which: slice | Tensor) -> "Arrays":
        return Arrays(self.images[which], self.labels[which])


def moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every channel, in units of 255; exact, from how often each
    byte occurs."""
    values = torch.arange(256, dtype=torch.float64)
    counts = torch.stack(
        [torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]
    ).double()
    mean = counts @ values / counts.sum(1)
    variance = (counts * (values - mean[:, None]) ** 2).sum(1) / counts.sum(1)
    return (mean / 255).float(), (variance.sqrt() / 255).float().clamp_min(
        1e-6
    )  # one grey image has no deviation
