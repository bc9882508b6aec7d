"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019): two images and two labels become one.

    mixup     x = m x_i + (1 - m) x_j                              m ~ Beta(v, v)
    cutmix    x = x_i outside a box, x_j inside, of area 1 - m     m ~ Beta(v, v)
    labels    y = m y_i + (1 - m) y_j

The border of the image may cut the box of cutmix; m is then the area outside the box. There is one
m for a batch, and j is the batch in reverse order. If both are switched on, each batch uses one of
them at random (S2, "Effective Theory of Transformers at Initialization", II.1.A: v = 0.8 and 1.0).
Labels are smoothed first: y = (1 - s) onehot + s / classes.
"""

import torch
from scipy.special import betaincinv
from torch import Tensor
from torch.nn import functional

from orderone.core.inputs import Number
from orderone.data.augment.erase import within
from orderone.data.draws import Draws


def mix(
    images: Tensor, labels: Tensor, draws: Draws, mixup: Number = 0.8, cutmix: Number = 1.0
) -> tuple[Tensor, Tensor]:
    """Mix floats (seeds, batch, channels, height, width) and labels (seeds, batch, classes)."""
    height, width = images.shape[-2:]
    share, boxes = draw_mixes(draws, height, width, mixup, cutmix)
    inside = within(boxes.to(images.device), height, width)[:, None, None]
    cut = (boxes[:, 0] >= 0).to(images.device)
    m = share.to(images.device, images.dtype).view(-1, 1, 1, 1, 1)
    weight = torch.where(cut.view_as(m), (~inside).to(images.dtype), m)
    mixed = images * weight + images.flip(1) * (1 - weight)
    m = m.view(-1, 1, 1)
    return mixed, labels * m + labels.flip(1) * (1 - m)


def draw_mixes(
    draws: Draws, height: int, width: int, mixup: Number, cutmix: Number
) -> tuple[Tensor, Tensor]:
    """Draw the share m of the first image and the box, for every seed.

    A box is (top, left, height, width), or -1 for mixup.
    """
    u = draws.uniform("mix", 4).double()
    if mixup and cutmix:
        chance = 0.5
    else:
        chance = float(bool(cutmix))
    cut = u[:, 0] < chance
    side = (1 - _beta(cutmix, u[:, 1])).sqrt()
    half_high = (side * height).long() // 2
    half_wide = (side * width).long() // 2
    y = (u[:, 2] * height).long()
    x = (u[:, 3] * width).long()
    top = (y - half_high).clamp_min(0)
    bottom = (y + half_high).clamp_max(height)
    left = (x - half_wide).clamp_min(0)
    right = (x + half_wide).clamp_max(width)
    area = ((bottom - top) * (right - left)).double() / (height * width)
    share = torch.where(cut, 1 - area, _beta(mixup, u[:, 1]))
    boxes = torch.stack((top, left, bottom - top, right - left), -1)
    return share, torch.where(cut[:, None], boxes, -1)


def _beta(v: Number, u: Tensor) -> Tensor:
    """Return Beta(v, v) draws from uniform numbers; ones where v is 0."""
    if not v:
        return torch.ones_like(u)
    return torch.from_numpy(betaincinv(v, v, u.numpy())).double()


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Return 1 for the class of every label and 0 for all others, as floats."""
    return functional.one_hot(labels, classes).float()


def smooth(labels: Tensor, smoothing: Number) -> Tensor:
    """Spread a part of every label evenly over all classes (Szegedy et al. 2016)."""
    return (1 - smoothing) * labels + smoothing / labels.shape[-1]


def soft_cross_entropy(output: object, target: Tensor) -> Tensor:
    """Return -sum_c y_c log p_c, the mean over the batch.

    The output is logits, or has them as an attribute. Targets may be classes as whole numbers.
    """
    logits: Tensor = getattr(output, "logits", output)  # type: ignore[assignment]
    return functional.cross_entropy(logits, target)
