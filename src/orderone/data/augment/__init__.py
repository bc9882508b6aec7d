"""Augmentation of whole batches, with separate random draws for every image.

Functions take and return bytes (n, channels, height, width) unless they say otherwise.
"""

from orderone.data.augment.crop import flip, padded_crop, resized_crop
from orderone.data.augment.erase import erase
from orderone.data.augment.mix import mix, one_hot, smooth, soft_cross_entropy
from orderone.data.augment.randaugment import OPERATIONS, randaugment

__all__ = [
    "OPERATIONS",
    "erase",
    "flip",
    "mix",
    "one_hot",
    "padded_crop",
    "randaugment",
    "resized_crop",
    "smooth",
    "soft_cross_entropy",
]
