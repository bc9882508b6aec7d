"""How far outputs have moved: those of every pass on one batch beside those of the first."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

SEED = 0  # of what is random in a repeated pass: the same masks every time


class Reference:
    """The outputs of a first pass, by module and call: a shared module is called several times in one pass."""

    def __init__(self) -> None:
        self._first: dict[tuple[tuple[str, str], int], Tensor] = {}
        self._complete = False
        self.rewind()

    def rewind(self) -> None:
        """A new pass begins; what the first one has left is the reference."""
        self._complete = bool(self._first)
        self._calls: dict[tuple[str, str], int] = {}
        self._copies: dict[int, Tensor] = {}
        self._compared: dict[tuple[int, int], int] = {}

    @torch.no_grad()
    def change(self, key: tuple[str, str], x: Tensor, number: int, slot: Callable[[Tensor], int]) -> int | None:
        """The `slot` of the change of `x` since the first pass; `number` tells tensors apart, so that one that several
        modules give is copied and compared once."""
        call = self._calls[key] = self._calls.get(key, -1) + 1
        if not self._complete:
            if number not in self._copies:
                self._copies[number] = x.detach().clone()
            self._first[key, call] = self._copies[number]
            return None
        first = self._first.get((key, call))
        if first is None or first.shape != x.shape:  # experts, for one, see other tokens every time
            return None
        pair = (number, id(first))
        if pair not in self._compared:
            self._compared[pair] = slot(x.detach() - first)
        return self._compared[pair]


@contextmanager
def repeatable(model: nn.Module) -> Iterator[None]:
    """The same random numbers every time, in the mode the model is in; buffers and random state stay as they were."""
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    contents = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with _same_random_numbers(sorted({p.device.index for p in model.parameters() if p.is_cuda})):
            yield
    finally:
        for module, own in buffers:  # some are written into, some replaced
            module._buffers.update(own)
        for buffer, content in contents:
            buffer.data.copy_(content)  # without a new version: a graph may hold it, and finds it as it was


@contextmanager
def _same_random_numbers(devices: list[int]) -> Iterator[None]:
    """torch.manual_seed would also reach the devices that are not put back afterwards."""
    pythons, numpys = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices):
            random.seed(SEED)
            np.random.seed(SEED)
            for generator in (torch.default_generator, *(torch.cuda.default_generators[i] for i in devices)):
                generator.manual_seed(SEED)
            yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)
