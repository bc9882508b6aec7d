"""Windows of pixels that a convolution or a pooling layer reads, for any number of axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Annotated, TypeAlias

import numpy as np

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.inputs import UserInput

SpaceInput: TypeAlias = Annotated[int | Sequence[int], UserInput]
MODES = ("zeros", "circular", "reflect", "replicate")


def per_axis(value: object, name: str, least: int) -> tuple[int, ...]:
    """Return whole numbers, one per axis of space, or one for all."""
    if isinstance(value, tuple | list):
        values = value
    else:
        values = (value,)
    return tuple(count(number, name, least=least) for number in values)


@dataclass(frozen=True, eq=False)
class Windows:
    """Pixels that each new pixel reads: (offsets, new pixels), -1 outside of the image."""

    space: tuple[int, ...]  # of the new pixels
    pixels: np.ndarray
    old: int  # pixels before

    @classmethod
    def of(
        cls,
        space: tuple[int, ...],
        window: tuple[int, ...],
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...] = (1,),
        mode: str = "zeros",
    ) -> "Windows":
        """Compute the windows of images with the axes `space`."""
        axes = len(space)
        window, stride, padding, dilation = (
            _all_axes(numbers, axes) for numbers in (window, stride, padding, dilation)
        )
        places: list[np.ndarray] = []  # for each axis, (offsets, new places)
        for size, length, step, pad, gap in zip(
            space, window, stride, padding, dilation, strict=True
        ):
            new = (size + 2 * pad - gap * (length - 1) - 1) // step + 1
            if new < 1:
                raise InputError(
                    f"window: expected one that fits into an image of {space} pixels, got {window}"
                    f" with padding {padding}",
                    argument="kernel",
                )
            place = np.arange(length)[:, None] * gap + np.arange(new)[None] * step - pad
            places.append(_inside(place, size, mode))
        new_space = tuple(place.shape[1] for place in places)
        rows = []
        for offset in product(*(range(length) for length in window)):
            grids = np.meshgrid(
                *(place[o] for place, o in zip(places, offset, strict=True)), indexing="ij"
            )
            flat = np.zeros(new_space, dtype=np.int64)
            outside = np.zeros(new_space, dtype=bool)
            for grid, size in zip(grids, space, strict=True):
                flat = flat * size + grid
                outside |= grid < 0
            rows.append(np.where(outside, -1, flat).reshape(-1))
        return cls(new_space, np.stack(rows), prod(space))

    def average(self, count_pad: bool) -> np.ndarray:
        """Return the weights of the mean over each window, (new pixels, old pixels)."""
        offsets, new = self.pixels.shape
        weights = np.zeros((new, self.old))
        for row in self.pixels:
            inside = row >= 0
            weights[np.nonzero(inside)[0], row[inside]] += 1
        if count_pad:
            return weights / offsets
        return weights / weights.sum(1, keepdims=True)


def _all_axes(numbers: tuple[int, ...], axes: int) -> tuple[int, ...]:
    if len(numbers) == 1:
        return numbers * axes
    if len(numbers) != axes:
        raise InputError(
            f"window: expected one number, or one for each of {axes} axes of space, got {numbers}",
            argument="kernel",
        )
    return numbers


def _inside(place: np.ndarray, size: int, mode: str) -> np.ndarray:
    """Return places in the image, -1 for a zero outside of it."""
    if mode == "circular":
        return place % size
    if mode == "replicate":
        return place.clip(0, size - 1)
    if mode == "reflect":
        return size - 1 - abs(size - 1 - abs(place))
    return np.where((place >= 0) & (place < size), place, -1)
