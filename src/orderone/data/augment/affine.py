"""Rotation, shear and translation, as Pillow's `Image.transform(AFFINE, BILINEAR)` does them.

    source = (a b; d e) (x + 1/2, y + 1/2) + (c, f),   (x, y) the pixel that is made

The source is interpolated between the four pixels around it; where it lies outside the image, the
pixel is `fill`.
"""

import torch
from torch import Tensor
from torch.nn import functional


def rotation(degrees: Tensor, height: int, width: int) -> Tensor:
    """About the middle, counterclockwise: matrices (n, 2, 3)."""
    angle = torch.deg2rad(-degrees.double())
    cos = angle.cos()
    sin = angle.sin()
    middle = (width / 2, height / 2)
    rows = [cos, sin, middle[0] - cos * middle[0] - sin * middle[1]]
    rows += [-sin, cos, middle[1] + sin * middle[0] - cos * middle[1]]
    return torch.stack(rows, -1).view(-1, 2, 3)


def shear_x(factor: Tensor) -> Tensor:
    return _identity_but(factor, 0, 1)


def shear_y(factor: Tensor) -> Tensor:
    return _identity_but(factor, 1, 0)


def translate_x(pixels: Tensor) -> Tensor:
    return _identity_but(pixels, 0, 2)


def translate_y(pixels: Tensor) -> Tensor:
    return _identity_but(pixels, 1, 2)


def transform(images: Tensor, matrices: Tensor, fill: Tensor) -> Tensor:
    """Bytes (n, channels, height, width) by matrices (n, 2, 3); `fill` is (channels,) bytes."""
    height, width = images.shape[-2:]
    matrices = matrices.to(images.device)
    x = torch.arange(width, device=images.device, dtype=torch.float64) + 0.5
    y = torch.arange(height, device=images.device, dtype=torch.float64) + 0.5
    source = [
        row[:, 0, None, None] * x + row[:, 1, None, None] * y[:, None] + row[:, 2, None, None]
        for row in matrices.unbind(1)
    ]
    inside = (source[0] >= 0) & (source[0] < width) & (source[1] >= 0) & (source[1] < height)
    found = sample(images.float(), source[0], source[1])
    return torch.where(
        inside.unsqueeze(1), found.to(torch.uint8), fill.view(1, -1, 1, 1).to(images.device)
    )


def sample(images: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Between pixels, at places (n, height, width) counted from the left and upper rim; beyond the
    rim as at the rim."""
    height, width = images.shape[-2:]
    grid = torch.stack((2 * x / width - 1, 2 * y / height - 1), -1).to(images.dtype)
    return functional.grid_sample(
        images, grid, mode="bilinear", padding_mode="border", align_corners=False
    )


def _identity_but(value: Tensor, row: int, column: int) -> Tensor:
    matrices = torch.eye(2, 3, dtype=torch.float64).repeat(len(value), 1, 1)
    matrices[:, row, column] = value.double()
    return matrices
