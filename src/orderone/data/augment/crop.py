"""Crops and flips.

    resized crop   a box of 8 to 100 % of the area and of an aspect from 3/4 to 4/3, enlarged to
                   the size of the image (section II.1.A of S2, "Effective Theory of Transformers
                   at Initialization")
    padded crop    the image shifted by up to `by` pixels, as if cut from one with a black frame

A box consists of whole pixels. Ten boxes are drawn and the first that fits is used; if none fits,
the largest box in the middle.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn import functional

from orderone.core.inputs import Number
from orderone.data.augment.affine import sample
from orderone.data.draws import Draws

AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
TRIES = 10


@dataclass(frozen=True)
class Chances:
    """Uniform numbers for n boxes, drawn before the size of an image is known."""

    area: Tensor  # (n, TRIES)
    aspect: Tensor  # (n, TRIES)
    place: Tensor  # (n, 2)

    def each(self) -> "Iterator[Chances]":
        """Yield the numbers of one box after another."""
        for n in range(len(self.place)):
            yield Chances(self.area[n : n + 1], self.aspect[n : n + 1], self.place[n : n + 1])


def resized_crop(images: Tensor, draws: Draws) -> Tensor:
    """Enlarge a random box of every image (seeds * batch, channels, height, width) to its size."""
    chances = draw_chances(draws, len(images) // len(draws.keys))
    boxes = place_boxes(chances, *images.shape[-2:])
    return crop(images, boxes.to(images.device))


def draw_chances(draws: Draws, batch: int) -> Chances:
    """Draw the numbers of seeds * batch boxes."""
    return Chances(
        area=draws.uniform("area", batch, TRIES).flatten(0, 1).double(),
        aspect=draws.uniform("aspect", batch, TRIES).flatten(0, 1).double(),
        place=draws.uniform("place", batch, 2).flatten(0, 1).double(),
    )


def place_boxes(chances: Chances, height: int, width: int) -> Tensor:
    """Return top, left, height and width of every box, (n, 4)."""
    area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * chances.area)
    low = log(ASPECT[0])
    high = log(ASPECT[1])
    aspect = (low + (high - low) * chances.aspect).exp()
    tall = (area / aspect).sqrt().round().long()
    wide = (area * aspect).sqrt().round().long()
    fits = (tall <= height) & (wide <= width) & (tall > 0) & (wide > 0)
    first = fits.int().argmax(-1, keepdim=True)
    none = ~fits.any(-1)
    tallest = min(height, round(width / ASPECT[0]))
    widest = min(width, round(height * ASPECT[1]))
    tall = torch.where(none, tallest, tall.gather(-1, first).squeeze(-1))
    wide = torch.where(none, widest, wide.gather(-1, first).squeeze(-1))
    place = torch.where(none[:, None], 0.5, chances.place)
    top = (place[:, 0] * (height - tall + 1)).long()
    left = (place[:, 1] * (width - wide + 1)).long()
    return torch.stack((top, left, tall, wide), -1)


def crop(images: Tensor, boxes: Tensor) -> Tensor:
    """Enlarge every image's box to the size of the image, by interpolation within the box."""
    height, width = images.shape[-2:]
    y = _places(boxes[:, 0], boxes[:, 2], height)
    x = _places(boxes[:, 1], boxes[:, 3], width)
    x = x[:, None, :].expand(-1, height, -1)
    y = y[:, :, None].expand(-1, -1, width)
    return sample(images.float(), x, y).round().to(torch.uint8)


def _places(start: Tensor, size: Tensor, number: int) -> Tensor:
    """Return places of `number` pixels in the box, at least half a pixel from its border."""
    start = start[:, None].double()
    size = size[:, None].double()
    steps = (torch.arange(number, device=start.device, dtype=torch.float64) + 0.5) / number
    return start + (steps * size).clamp(min=torch.full_like(size, 0.5), max=size - 0.5)


def padded_crop(images: Tensor, draws: Draws, by: int = 4) -> Tensor:
    """Shift every image by up to `by` pixels; the uncovered border becomes black."""
    height, width = images.shape[-2:]
    batch = len(images) // len(draws.keys)
    shift = draws.below(2 * by + 1, "shift", batch, 2).flatten(0, 1).to(images.device)
    padded = functional.pad(images, (by, by, by, by))
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)  # a view of all crops
    return crops[torch.arange(len(images), device=images.device), :, shift[:, 0], shift[:, 1]]


def flip(images: Tensor, draws: Draws, chance: Number = 0.5) -> Tensor:
    """Exchange left and right with probability `chance`."""
    turned = draws.uniform("flip", len(images) // len(draws.keys)).flatten() < chance
    return torch.where(turned.to(images.device).view(-1, 1, 1, 1), images.flip(-1), images)
