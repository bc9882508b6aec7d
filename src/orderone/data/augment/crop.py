"""Crops and flips.

    resized crop   a box of 8 to 100 % of the area and of an aspect from 3/4 to 4/3, enlarged to the whole (S2 II.1.A)
    padded crop    the image shifted by up to `by` pixels, as if cut from one with a black frame

A box is whole pixels; ten are drawn, the first that fits is taken, else the largest in the middle.
"""

from math import log

import torch
from torch import Tensor

from orderone.core.given import Number
from orderone.data.augment.affine import sample
from orderone.data.draws import Draws

AREA, ASPECT, TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10


def resized_crop(images: Tensor, draws: Draws, area: tuple[float, float] = AREA) -> Tensor:
    """Bytes (seeds * batch, channels, height, width), of the same size."""
    height, width = images.shape[-2:]
    boxes = draw_boxes(draws, len(images) // len(draws.keys), height, width, area)
    return crop(images, boxes.to(images.device))


def draw_boxes(
    draws: Draws, batch: int, height: int, width: int, area: tuple[float, float] = AREA, aspect=ASPECT
) -> Tensor:
    """(seeds * batch, 4): top, left, height, width of every box."""
    part = area[0] + (area[1] - area[0]) * draws.uniform("area", batch, TRIES).flatten(0, 1).double()
    bend = (
        log(aspect[0])
        + (log(aspect[1]) - log(aspect[0])) * draws.uniform("aspect", batch, TRIES).flatten(0, 1).double()
    )
    high = (height * width * part / bend.exp()).sqrt().round().long()
    wide = (height * width * part * bend.exp()).sqrt().round().long()
    fits = (high <= height) & (wide <= width) & (high > 0) & (wide > 0)
    first = fits.int().argmax(-1, keepdim=True)
    none = ~fits.any(-1)
    high = torch.where(none, min(height, round(width / aspect[0])), high.gather(-1, first).squeeze(-1))
    wide = torch.where(none, min(width, round(height * aspect[1])), wide.gather(-1, first).squeeze(-1))
    u = torch.where(none[:, None], 0.5, draws.uniform("place", batch, 2).flatten(0, 1).double())
    top = torch.where(none, (height - high) // 2, (u[:, 0] * (height - high + 1)).long())
    left = torch.where(none, (width - wide) // 2, (u[:, 1] * (width - wide + 1)).long())
    return torch.stack((top, left, high, wide), -1)


def crop(images: Tensor, boxes: Tensor) -> Tensor:
    """Every image's box, enlarged to the size of the image between its own pixels."""
    height, width = images.shape[-2:]
    y = _places(boxes[:, 0], boxes[:, 2], height)
    x = _places(boxes[:, 1], boxes[:, 3], width)
    x, y = x[:, None, :].expand(-1, height, -1), y[:, :, None].expand(-1, -1, width)
    return sample(images.float(), x, y).round().to(torch.uint8)


def _places(start: Tensor, size: Tensor, number: int) -> Tensor:
    """Places of `number` pixels in the box, none nearer to its rim than half a pixel."""
    start, size = start[:, None].double(), size[:, None].double()
    steps = (torch.arange(number, device=start.device, dtype=torch.float64) + 0.5) / number
    return start + (steps * size).clamp(min=torch.full_like(size, 0.5), max=size - 0.5)


def padded_crop(images: Tensor, draws: Draws, by: int = 4) -> Tensor:
    height, width = images.shape[-2:]
    shift = draws.below(2 * by + 1, "shift", len(images) // len(draws.keys), 2).flatten(0, 1).to(images.device)
    padded = torch.nn.functional.pad(images, (by, by, by, by))
    rows = (shift[:, 0, None] + torch.arange(height, device=images.device))[:, None, :, None]
    columns = (shift[:, 1, None] + torch.arange(width, device=images.device))[:, None, None, :]
    number, channel = (torch.arange(n, device=images.device) for n in images.shape[:2])
    return padded[number[:, None, None, None], channel[:, None, None], rows, columns]


def flip(images: Tensor, draws: Draws, chance: Number = 0.5) -> Tensor:
    """Left and right exchanged, in one case of two."""
    turned = draws.uniform("flip", len(images) // len(draws.keys)).flatten() < chance
    return torch.where(turned.to(images.device).view(-1, 1, 1, 1), images.flip(-1), images)
