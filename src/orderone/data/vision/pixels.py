"""Sources of images in memory or in files, which return bytes by image number."""

from hashlib import sha256
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from orderone.data.draws import Draws
from orderone.data.vision.arrays import Arrays, moments


@runtime_checkable
class Pixels(Protocol):
    """A source of images."""

    cropped: bool  # whether `take` returns random boxes of the images

    @property
    def classes(self) -> int:
        """Return the number of classes."""
        ...

    @property
    def shape(self) -> torch.Size:
        """Return (channels, height, width)."""
        ...

    @property
    def fingerprint(self) -> str:
        """Return a string that differs if the images differ."""
        ...

    def __len__(self) -> int: ...

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of every channel, in units of 255."""
        ...

    def take(self, indices: Tensor, draws: Draws, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return bytes (n, channels, height, width) and classes (n,), on the device."""
        ...


class Memory:
    """Images in memory, copied once to every device that makes batches."""

    cropped: bool = False
    arrays: Arrays
    shape: torch.Size
    classes: int
    fingerprint: str

    def __init__(self, arrays: Arrays):
        self.arrays = arrays
        self._copies = {torch.device("cpu"): arrays}
        self.shape = arrays.images.shape[1:]
        self.classes = int(arrays.labels.max()) + 1
        digest = sha256(arrays.images.contiguous().numpy().data)
        digest.update(arrays.labels.numpy().tobytes() + str(tuple(self.shape)).encode())
        self.fingerprint = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.arrays)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of every channel, in units of 255."""
        return moments(self.arrays.images)

    def take(self, indices: Tensor, draws: Draws, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return bytes (n, channels, height, width) and classes (n,), on the device."""
        if device not in self._copies:
            self._copies[device] = Arrays(
                self.arrays.images.to(device), self.arrays.labels.to(device)
            )
        arrays = self._copies[device]
        indices = indices.to(device)
        return arrays.images.index_select(0, indices), arrays.labels.index_select(0, indices)
