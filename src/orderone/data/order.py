"""The order of samples.

Every epoch contains each sample once, in a new order; a batch may span two epochs. An epoch is
ordered by hashes of the sample numbers, so that its order depends on seed and epoch alone.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from orderone.data.draws import Draws

CACHED_ORDERS = 256  # at least; the most recently used ones stay


class Order:
    """Numbers of the samples of a step: `order(step, seeds)` is (seeds, batch)."""

    samples: int
    batch: int

    def __init__(self, samples: int, batch: int):
        self.samples = samples
        self.batch = batch
        self._cache: OrderedDict[tuple[int, int], Tensor] = OrderedDict()

    def __call__(self, step: int, seeds: Sequence[int]) -> Tensor:
        rows = [self._row(step * self.batch, seed) for seed in seeds]
        while len(self._cache) > max(CACHED_ORDERS, 2 * len(seeds)):
            self._cache.popitem(last=False)
        return torch.stack(rows).long()

    def _row(self, start: int, seed: int) -> Tensor:
        end = start + self.batch
        pieces = []
        while start < end:
            epoch, place = divmod(start, self.samples)
            pieces.append(self._epoch(seed, epoch)[place : place + end - start])
            start += len(pieces[-1])
        return torch.cat(pieces)

    def _epoch(self, seed: int, epoch: int) -> Tensor:
        key = (seed, epoch)
        if key not in self._cache:
            hashes = Draws([seed], epoch).bits("order", self.samples)[0]
            self._cache[key] = hashes.argsort(stable=True).int()
        self._cache.move_to_end(key)
        return self._cache[key]


def spread(samples: int, some: int) -> Tensor:
    """Return `some` different numbers below `samples`, evenly spaced."""
    return torch.arange(some) * samples // max(some, 1)
