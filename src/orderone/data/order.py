"""The order of samples.

Every epoch shows each sample once, in an order of its own; epochs follow without a gap. The order
of an epoch sorts hashes of the places, so that it depends on seed and epoch alone.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from orderone.data.draws import Draws

KEPT = 256  # orders that are remembered at least; those that were used last


class Order:
    """The samples of a step: `order(step, seeds)` is (seeds, batch)."""

    samples: int
    batch: int

    def __init__(self, samples: int, batch: int):
        self.samples = samples
        self.batch = batch
        self._kept: OrderedDict[tuple[int, int], Tensor] = OrderedDict()

    def __call__(self, step: int, seeds: Sequence[int]) -> Tensor:
        rows = [self._row(step * self.batch, seed) for seed in seeds]
        while len(self._kept) > max(KEPT, 2 * len(seeds)):
            self._kept.popitem(last=False)
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
        if key not in self._kept:
            hashes = Draws([seed], epoch).bits("order", self.samples)[0]
            self._kept[key] = hashes.argsort(stable=True).int()
        self._kept.move_to_end(key)
        return self._kept[key]


def spread(samples: int, some: int) -> Tensor:
    """Return some of the numbers below `samples`, all different, at equal distances."""
    return torch.arange(some) * samples // max(some, 1)
