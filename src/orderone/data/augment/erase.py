"""Random erasing (Zhong et al. 2020): in some images, one rectangle becomes noise.

    area 2 to 33 % of the image, aspect from 0.3 to 1 / 0.3, a standard normal draw for every pixel

Erasing comes after normalisation, so that noise and pixels have the same scale. Ten rectangles are
drawn; the first that fits is erased. If none fits, the image stays as it is.
"""

from math import log

import torch
from torch import Tensor

from orderone.core.inputs import Number
from orderone.data.draws import Draws

AREA = (0.02, 1 / 3)
ASPECT = (0.3, 1 / 0.3)
TRIES = 10


def erase(images: Tensor, draws: Draws, noise: Draws, chance: Number = 0.25) -> Tensor:
    """Erase in floats (seeds * batch, channels, height, width).

    `noise` draws on the device of the images.
    """
    batch = len(images) // len(draws.keys)
    height, width = images.shape[-2:]
    boxes, fits = draw_rectangles(draws, batch, height, width)
    erased = fits & (draws.uniform("erased", batch).flatten() < chance)
    at = erased.nonzero().flatten()
    boxes = boxes[at].to(images.device)
    at = at.to(images.device)
    inside = within(boxes, height, width).unsqueeze(1).expand(-1, images.shape[1], -1, -1)
    # Few pixels are inside: draw noise for these alone.
    box, pixel = inside.flatten(1).nonzero(as_tuple=True)
    place = at[box] % batch * images[0].numel() + pixel
    pixels = noise.normal_at("noise", at[box] // batch, place)
    images = images.clone()
    images[at] = images[at].masked_scatter(inside, pixels)
    return images


def within(boxes: Tensor, height: int, width: int) -> Tensor:
    """Return which pixels lie in boxes (n, 4) of top, left, height, width: (n, height, width)."""
    top, left, tall, wide = boxes[:, :, None, None].unbind(1)
    rows = torch.arange(height, device=boxes.device).view(1, -1, 1)
    columns = torch.arange(width, device=boxes.device).view(1, 1, -1)
    return (rows >= top) & (rows < top + tall) & (columns >= left) & (columns < left + wide)


def draw_rectangles(draws: Draws, batch: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return top, left, height, width (seeds * batch, 4), and whether a rectangle fitted."""
    u = draws.uniform("erased area", batch, TRIES).flatten(0, 1).double()
    part = AREA[0] + (AREA[1] - AREA[0]) * u
    low = log(ASPECT[0])
    high = log(ASPECT[1])
    u = draws.uniform("erased aspect", batch, TRIES).flatten(0, 1).double()
    aspect = (low + (high - low) * u).exp()
    tall = (height * width * part * aspect).sqrt().round().long()
    wide = (height * width * part / aspect).sqrt().round().long()
    fits = (tall < height) & (wide < width)
    first = fits.int().argmax(-1, keepdim=True)
    tall = tall.gather(-1, first).squeeze(-1)
    wide = wide.gather(-1, first).squeeze(-1)
    u = draws.uniform("erased place", batch, 2).flatten(0, 1).double()
    top = (u[:, 0] * (height - tall + 1)).long()
    left = (u[:, 1] * (width - wide + 1)).long()
    return torch.stack((top, left, tall, wide), -1), fits.any(-1)
