"""Rotation, shear and translation, as Pillow's `Image.transform(AFFINE, BILINEAR)` does them.

    source = (a b; d e) (x + 1/2, y + 1/2) + (c, f),   (x, y) a pixel of the result

The pixel is interpolated between the four pixels around its source; if the source is outside the
image, the pixel is `fill`.
"""

import torch
from torch import Tensor
from torch.nn import functional


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """Return matrices (n, 2, 3) of rotations about the middle, counterclockwise."""
    angle = torch.deg2rad(-degrees.double())
    cos = angle.cos()
    sin = angle.sin()
    x = width / 2
    y = height / 2
    entries = [cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y]
    return torch.stack(entries, -1).view(-1, 2, 3)


def shear_x(factor: Tensor) -> Tensor:
    """Return matrices (n, 2, 3) that move rows sideways."""
    return _identity_but(factor, 0, 1)


def shear_y(factor: Tensor) -> Tensor:
    """Return matrices (n, 2, 3) that move columns up or down."""
    return _identity_but(factor, 1, 0)


def translate_x(pixels: Tensor) -> Tensor:
    """Return matrices (n, 2, 3) that move images sideways."""
    return _identity_but(pixels, 0, 2)


def translate_y(pixels: Tensor) -> Tensor:
    """Return matrices (n, 2, 3) that move images up or down."""
    return _identity_but(pixels, 1, 2)


def transform(images: Tensor, matrices: Tensor, fill: Tensor) -> Tensor:
    """Transform images by matrices (n, 2, 3); `fill` is (channels,) bytes."""
    height, width = images.shape[-2:]
    matrices = matrices.to(images.device)
    x = torch.arange(width, device=images.device, dtype=torch.float64) + 0.5
    y = torch.arange(height, device=images.device, dtype=torch.float64) + 0.5
    a, b, c, d, e, f = matrices.flatten(1)[:, :, None, None].unbind(1)
    source_x = a * x + b * y[:, None] + c
    source_y = d * x + e * y[:, None] + f
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    pixels = sample(images.float(), source_x, source_y).to(torch.uint8)
    return torch.where(inside.unsqueeze(1), pixels, fill.view(1, -1, 1, 1).to(images.device))


def sample(images: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Interpolate between pixels, at places (n, height, width).

    Places count from the left and upper border; beyond the border, its pixels are repeated.
    """
    height, width = images.shape[-2:]
    grid = torch.stack((2 * x / width - 1, 2 * y / height - 1), -1).to(images.dtype)
    return functional.grid_sample(
        images, grid, mode="bilinear", padding_mode="border", align_corners=False
    )


def _identity_but(value: Tensor, row: int, column: int) -> Tensor:
    matrices = torch.eye(2, 3, dtype=torch.float64).repeat(len(value), 1, 1)
    matrices[:, row, column] = value.double()
    return matrices
