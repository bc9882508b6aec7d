"""Where images come from: bytes by their numbers, from memory or from files."""

from hashlib import sha256
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from orderone.data.draws import Draws
from orderone.data.vision.arrays import Arrays, moments


@runtime_checkable
class Pixels(Protocol):
    cropped: bool  # whether `take` cuts boxes at random already

    @property
    def classes(self) -> int: ...

    @property
    def shape(self) -> torch.Size: ...

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of every channel, in units of 255."""
        ...

    def take(self, which: Tensor, draws: Draws, device: torch.device) -> tuple[Tensor, Tensor]:
        """Bytes (n, channels, height, width) and classes (n,), on the device."""
        ...


class Memory:
    """All of them at once, on every device where they were asked for."""

    cropped = False

    def __init__(self, arrays: Arrays):
        self.arrays = arrays
        self._there = {torch.device("cpu"): arrays}
        self.shape = arrays.images.shape[1:]
        self.classes = int(arrays.labels.max()) + 1
        digest = sha256(arrays.images.contiguous().numpy().data)
        digest.update(arrays.labels.numpy().tobytes() + str(tuple(self.shape)).encode())
        self.fingerprint = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.arrays)

    def moments(self) -> tuple[Tensor, Tensor]:
        return moments(self.arrays.images)

    def take(self, which: Tensor, draws: Draws, device: torch.device) -> tuple[Tensor, Tensor]:
        if device not in self._there:
            self._there[device] = Arrays(
                self.arrays.images.to(device), self.arrays.labels.to(device)
            )
        arrays = self._there[device]
        which = which.to(device)
        return arrays.images.index_select(0, which), arrays.labels.index_select(0, which)
