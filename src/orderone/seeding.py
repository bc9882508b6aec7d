"""Seeds of all random generators that a user's `build` may draw from: torch, numpy and Python."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_NUMPY_SEEDS = 2**32  # numpy's global generator accepts no larger seeds


@dataclass(frozen=True)
class AllGenerators:
    """States of all generators: torch's on the CPU and the present GPU, numpy's and Python's."""

    python: tuple[Any, ...]
    numpy: Any
    cpu: torch.Tensor
    cuda: torch.Tensor | None

    @staticmethod
    def now() -> "AllGenerators":
        cuda = None
        if torch.cuda.is_initialized():
            cuda = torch.cuda.get_rng_state()
        return AllGenerators(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda)

    def same_outside_torch(self, other: "AllGenerators") -> bool:
        """Return whether numpy's and Python's generators have the same states."""
        if self.python != other.python:
            return False
        _, words, *rest = self.numpy
        _, other_words, *other_rest = other.numpy
        return rest == other_rest and np.array_equal(words, other_words)

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)


def start_seed(seed: int) -> int:
    """Return the seed of the values that a start draws for a model that was built with `seed`.

    It is another seed: with the same one, drawn tensors would repeat the numbers of those that keep
    the values of the model's own code.
    """
    text = f"start {seed}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7])


@contextmanager
def seeded(seed: int, devices: Sequence[int] | None = None) -> Iterator[None]:
    """Draw the same random numbers each time within this context.

    This covers torch on the CPU and on the GPUs `devices` (default: all), numpy's global generator,
    and `random`. The caller's generators are restored afterwards.
    """
    with preserved(devices):
        set_seed(seed, devices)
        yield


@contextmanager
def preserved(devices: Sequence[int] | None = None) -> Iterator[None]:
    """Restore the state of all generators at the end."""
    if devices is None:
        devices = range(torch.cuda.device_count())
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def set_seed(seed: int, devices: Sequence[int] | None = None) -> None:
    """Seed torch on the CPU and on the GPUs `devices` (default: all), numpy's global generator, and
    `random`."""
    random.seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)
    if devices is None and torch.accelerator.is_available():
        torch.manual_seed(seed)
        return
    # Without an accelerator, torch.manual_seed would record where it was called, for each kind of
    # device: 2 ms.
    torch.default_generator.manual_seed(seed)
    for device in devices or ():
        torch.cuda.default_generators[device].manual_seed(seed)
