"""RandAugment (Cubuk et al. 2020): random operations for every image, all of one magnitude.

Section II.1.A of S2 ("Effective Theory of Transformers at Initialization") applies two operations
of magnitude 9 out of 10, in the variant that its footnote 37 calls `rand-m9-mstd0.5-inc1`: the
magnitude of every operation is a normal draw with mean 9 and standard deviation 1/2, the strength
of all operations grows with it, and a chosen operation is applied with probability 1/2.

    at magnitude 10, in proportion below:

    rotate 30 deg           colour, contrast, brightness, sharpness 1 +- 0.9
    shear 0.3               posterize to 4 - 4 bits
    translate 0.45 sides    solarize from 256 - 256, solarize-add 110
"""

import torch
from torch import Tensor

from orderone.core.inputs import Number
from orderone.data.augment import affine, shades
from orderone.data.draws import Draws

MOST = 10.0  # the largest magnitude
APPLIED = 0.5  # probability that a chosen operation is applied

SHADES = (
    "autocontrast",
    "equalize",
    "invert",
    "posterize",
    "solarize",
    "solarize-add",
    "colour",
    "contrast",
    "brightness",
    "sharpness",
)
SHAPES = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
OPERATIONS = SHADES + SHAPES


def randaugment(
    images: Tensor,
    draws: Draws,
    number: int = 2,
    magnitude: Number = 9.0,
    noise: Number = 0.5,
    fill: Tensor | None = None,
) -> Tensor:
    """Augment bytes (seeds * batch, channels, height, width).

    `draws` are on the CPU, so that no operation waits for the device.
    """
    batch = len(images) // len(draws.keys)
    if fill is None:
        fill = torch.full(images.shape[1:2], 128, dtype=torch.uint8)
    for layer in range(number):
        operation = draws.below(len(OPERATIONS), f"operation {layer}", batch).flatten()
        deviation = draws.normal(f"magnitude {layer}", batch).flatten()
        level = (magnitude + noise * deviation).clamp(0, MOST) / MOST
        sign = 1 - 2 * draws.below(2, f"sign {layer}", batch).flatten()
        applied = draws.uniform(f"applied {layer}", batch).flatten() < APPLIED
        images = apply(images, torch.where(applied, operation, -1), level, sign, fill)
    return images


def apply(images: Tensor, operation: Tensor, level: Tensor, sign: Tensor, fill: Tensor) -> Tensor:
    """Apply an operation, by number (-1: none), to every image, at a level from 0 to 1."""
    images = images.clone()
    for number, name in enumerate(SHADES):
        at = (operation == number).nonzero().flatten()
        if len(at):
            place = at.to(images.device)
            images[place] = _shaded(name, images[place], level[at], sign[at])
    at = (operation >= len(SHADES)).nonzero().flatten()
    if len(at):
        place = at.to(images.device)
        height, width = images.shape[-2:]
        matrices = _matrices(operation[at], level[at] * sign[at], height, width)
        images[place] = affine.transform(images[place], matrices, fill)
    return images


def _shaded(name: str, images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    if name in {"autocontrast", "equalize", "invert"}:
        return getattr(shades, name)(images)
    if name == "posterize":
        strength = 4 - (4 * level).int()
    elif name == "solarize":
        strength = 256 - (256 * level).int()
    elif name == "solarize-add":
        strength = (110 * level).int()
    else:
        strength = (1 + 0.9 * level * sign).clamp_min(0.1)
    return getattr(shades, name.replace("-", "_"))(images, strength.to(images.device))


def _matrices(operation: Tensor, level: Tensor, height: int, width: int) -> Tensor:
    candidates = torch.stack(
        [
            affine.rotation(30 * level, height, width),
            affine.shear_x(0.3 * level),
            affine.shear_y(0.3 * level),
            affine.translate_x(0.45 * width * level),
            affine.translate_y(0.45 * height * level),
        ]
    )
    return candidates[operation - len(SHADES), torch.arange(len(operation))]
