"""Random erasing (Zhong et al. 2020): in some images, one rectangle becomes noise.

    area 2 to 33 % of the image, aspect from 0.3 to 1 / 0.3, a standard normal draw for every pixel

After normalisation, so that the noise is of the size of the pixels. Ten rectangles are drawn and the first that fits is
taken; where none does, nothing is erased.
"""

from math import log

import torch
from torch import Tensor

from orderone.core.given import Number
from orderone.data.draws import Draws

AREA, ASPECT, TRIES = (0.02, 1 / 3), (0.3, 1 / 0.3), 10


def erase(images: Tensor, draws: Draws, noise: Draws, chance: Number = 0.25) -> Tensor:
    """Floats (seeds * batch, channels, height, width); `noise` draws on the device of the images."""
    batch, (channels, height, width) = len(images) // len(draws.keys), images.shape[1:]
    boxes, fits = draw_rectangles(draws, batch, height, width)
    chosen = fits & (draws.uniform("erased", batch).flatten() < chance)
    top, left, high, wide = (boxes * chosen[:, None]).to(images.device).unbind(-1)
    rows = torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    inside_rows = (rows >= top[:, None]) & (rows < (top + high)[:, None])
    inside_columns = (columns >= left[:, None]) & (columns < (left + wide)[:, None])
    inside = (inside_rows[:, :, None] & inside_columns[:, None, :]).unsqueeze(1).expand_as(images)
    number = inside.flatten().nonzero().flatten()  # few pixels of all: noise is drawn for these alone
    member, place = number // (batch * channels * height * width), number % (batch * channels * height * width)
    return images.masked_scatter(inside, noise.normal_at("noise", member, place))


def draw_rectangles(draws: Draws, batch: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """(seeds * batch, 4): top, left, height, width; and whether one fitted."""
    part = AREA[0] + (AREA[1] - AREA[0]) * draws.uniform("erased area", batch, TRIES).flatten(0, 1).double()
    low, high = map(log, ASPECT)
    aspect = (low + (high - low) * draws.uniform("erased aspect", batch, TRIES).flatten(0, 1).double()).exp()
    tall = (height * width * part * aspect).sqrt().round().long()
    wide = (height * width * part / aspect).sqrt().round().long()
    fits = (tall < height) & (wide < width)
    first = fits.int().argmax(-1, keepdim=True)
    tall, wide = tall.gather(-1, first).squeeze(-1), wide.gather(-1, first).squeeze(-1)
    u = draws.uniform("erased place", batch, 2).flatten(0, 1).double()
    top, left = (u[:, 0] * (height - tall + 1)).long(), (u[:, 1] * (width - wide + 1)).long()
    return torch.stack((top, left, tall, wide), -1), fits.any(-1)
