"""Operations on the values of pixels, as in Pillow's ImageOps and ImageEnhance, for a batch.

    blend      out = a + factor (b - a), clamped to 0 .. 255 and rounded down
    grey       (19595 r + 38470 g + 7471 b + 2^15) / 2^16, rounded down

Images are bytes (n, channels, height, width), one channel or three; `strength` is (n,).
"""

import torch
from torch import Tensor
from torch.nn import functional

_GREY = (19595, 38470, 7471)  # ITU-R 601-2, in 65536ths


def autocontrast(images: Tensor) -> Tensor:
    """Stretch every channel so that its darkest shade is 0 and its lightest 255."""
    flat = images.flatten(2).double()
    low = flat.amin(-1, keepdim=True)
    high = flat.amax(-1, keepdim=True)
    # `255 / x` would be a product with 1 / x, which rounds twice
    scale = torch.full_like(low, 255).div(high - low)
    return _bytes(torch.where(high > low, flat * scale - low * scale, flat)).view_as(images)


def equalize(images: Tensor) -> Tensor:
    """Map every channel so that its shades are used about equally often."""
    flat = images.flatten(2).long()
    counts = torch.zeros(*flat.shape[:2], 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(2, flat, torch.ones_like(flat))
    last = counts.gather(2, flat.amax(-1, keepdim=True))
    step = (flat.shape[-1] - last) // 255
    before = counts.cumsum(2) - counts
    unchanged = torch.arange(256, device=images.device)
    table = torch.where(step > 0, (step // 2 + before) // step.clamp_min(1), unchanged)
    return table.clamp(0, 255).gather(2, flat).to(torch.uint8).view_as(images)


def invert(images: Tensor) -> Tensor:
    """Return the negative."""
    return 255 - images


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the first `bits` bits of every shade."""
    mask = (256 - 2 ** (8 - bits.long())).clamp(0, 255).to(torch.uint8)
    return images & _each(mask)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert shades of at least `threshold`."""
    return torch.where(images < _each(threshold), images, 255 - images)


def solarize_add(images: Tensor, more: Tensor, threshold: int = 128) -> Tensor:
    """Make shades below `threshold` lighter."""
    lighter = (images.int() + _each(more.int())).clamp_max(255).to(torch.uint8)
    return torch.where(images < threshold, lighter, images)


def colour(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with grey. A factor of 1 changes nothing."""
    return _blend(grey(images), images, factor)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black. A factor of 1 changes nothing."""
    return _blend(torch.zeros_like(images), images, factor)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean shade. A factor of 1 changes nothing."""
    mean = (grey(images).flatten(1).double().mean(1) + 0.5).floor()
    return _blend(_each(mean).expand_as(images), images, factor)


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the smoothed image. A factor of 1 changes nothing.

    The weights are 1 1 1, 1 5 1, 1 1 1 over 13, except at the rim.
    """
    smoothed = images.clone()
    if min(images.shape[-2:]) > 2:
        weights = torch.ones(1, 1, 3, 3, device=images.device)
        weights[..., 1, 1] = 5
        sums = functional.conv2d(images.flatten(0, 1).unsqueeze(1).float(), weights)
        inner = (sums / 13 + 0.5).floor().clamp(0, 255).to(torch.uint8)
        smoothed[..., 1:-1, 1:-1] = inner.view(*images.shape[:2], *inner.shape[-2:])
    return _blend(smoothed, images, factor)


def grey(images: Tensor) -> Tensor:
    """Return one channel of brightness."""
    if images.shape[1] == 1:
        return images
    weights = torch.tensor(_GREY, device=images.device, dtype=torch.int32).view(1, 3, 1, 1)
    total = (images.int() * weights).sum(1, keepdim=True, dtype=torch.int32)
    return (total + (1 << 15) >> 16).to(torch.uint8)


def _blend(start: Tensor, end: Tensor, factor: Tensor) -> Tensor:
    start = start.float()
    return _bytes(start + _each(factor.float()) * (end.float() - start))


def _bytes(x: Tensor) -> Tensor:
    return x.clamp(0, 255).to(torch.uint8)


def _each(x: Tensor) -> Tensor:
    return x.view(-1, 1, 1, 1)
