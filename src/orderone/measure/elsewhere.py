"""Sizes of tensors on other devices: held until many can be sized together, launched without waiting, fetched at once.

What is held by reference may be written over by code that follows, and a tensor's version tells so. Whoever does not know
that nothing will, asks for a copy.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

SHARE = 64  # of a device's memory, one such part may be held
MEMORY = 2**27  # bytes, where that is not known
Size = tuple[float, float, float, float]  # norm, sum, largest absolute value, number of entries that are not finite


class Held(NamedTuple):
    slot: int
    entries: int  # also of those that a sparse tensor does not hold
    x: Tensor
    original: Tensor  # x itself, or what it is a copy of
    version: int


Batch = tuple[list[tuple[int, int]], Tensor]  # slots and counts, and the four of each


class Elsewhere:
    """Tensors by slot. After `fetch`, `overwritten` has the slots of those that somebody has written into while they were
    held, and `lost` those among them of which there was no copy: their sizes are not what they were."""

    def __init__(self) -> None:
        self._held: list[Held] = []
        self._bytes = 0
        self._stream: tuple[int, torch.device] | None = None  # of CUDA, in which all that is held was computed
        self._underway: list[Batch] = []
        self.overwritten: set[int] = set()
        self.lost: set[int] = set()

    def hold(self, slot: int, count: int, x: Tensor, copy: bool) -> None:
        if x.is_cuda and (self._stream is None or _stream_of(x.device) != self._stream[0]):
            self.settle()
            self._stream = _stream_of(x.device), x.device
        self._held.append(Held(slot, count, x.clone() if copy else x, x, version(x)))
        self._bytes += (1 + copy) * x.nbytes
        if self._bytes > _memory(x.device):
            self.settle()

    def settle(self) -> None:
        """Launch the sizing of all that is held."""
        held, self._held, self._bytes = self._held, [], 0
        for one in held:
            if version(one.original) != one.version:
                self.overwritten.add(one.slot)
                if one.x is one.original:
                    self.lost.add(one.slot)
        with self._after_its_own_work():
            self.launch([(one.slot, one.entries, one.x) for one in held])

    def launch(self, labelled: Sequence[tuple[int, int, Tensor]]) -> None:
        """Slots, numbers of entries, and tensors that need not be held."""
        kinds: dict[tuple[torch.device, torch.dtype], tuple[list[tuple[int, int]], list[Tensor]]] = {}
        for slot, count, x in labelled:
            labels, tensors = kinds.setdefault((x.device, x.dtype), ([], []))
            labels.append((slot, count))
            tensors.append(x)
        self._underway += [(labels, sizes(tensors)) for labels, tensors in kinds.values()]

    @contextmanager
    def _after_its_own_work(self) -> Iterator[None]:
        """In the stream that computed it, on which the present one then waits."""
        if self._stream is None or _stream_of(self._stream[1]) == self._stream[0]:
            yield
            return
        stream = torch.cuda.ExternalStream(*self._stream)
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream(self._stream[1]).wait_stream(stream)

    def fetch(self) -> Iterator[tuple[int, int, Size]]:
        """Slots, counts, sizes. One transfer for each device, which as a rule is one."""
        self.settle()
        underway, self._underway = self._underway, []
        devices: dict[torch.device, list[Batch]] = {}
        for batch in underway:
            devices.setdefault(batch[1].device, []).append(batch)
        for batches in devices.values():
            labels = [label for labels, _ in batches for label in labels]
            arrived = torch.cat([found for _, found in batches], 1).tolist()
            for (slot, count), size in zip(labels, zip(*arrived, strict=True), strict=True):
                yield slot, count, size


def sizes(tensors: Sequence[Tensor]) -> Tensor:
    """The four, (4, tensors), of tensors of one precision on one device."""
    kernel = _kernel() if tensors[0].is_cuda else None
    if kernel is None:
        return torch.stack([_size(x) for x in tensors], 1)
    return kernel([_dense(x) for x in tensors])


def _dense(x: Tensor) -> Tensor:
    """In whatever order: if it is dense, as it lies in memory."""
    if x.is_neg():
        x = x.resolve_neg()
    if x.is_contiguous():
        return x
    as_it_lies = x.permute(sorted(range(x.dim()), key=x.stride, reverse=True))
    return as_it_lies.contiguous()  # itself, if nothing is between its entries


@cache
def _kernel() -> Callable[[Sequence[Tensor]], Tensor] | None:
    """If Triton is there, and can do here what it needs to: compile."""
    try:
        from orderone.measure import one_pass

        one_pass.sizes([torch.zeros(1, device="cuda")])
    except Exception:
        return None
    return one_pass.sizes


def _size(x: Tensor) -> Tensor:
    wide = torch.float32 if x.device.type == "mps" else torch.float64  # in double precision, if there is any
    low, high = torch.aminmax(x)
    bad = torch.isfinite(x).logical_not_().sum(dtype=wide)
    norm, total = torch.linalg.vector_norm(x, dtype=wide), x.sum(dtype=wide)
    return torch.stack([norm, total, torch.maximum(-low, high).to(wide), bad])


@cache
def _memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory // SHARE if device.type == "cuda" else MEMORY


def version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version


def _stream_of(device: torch.device) -> int:
    return torch._C._cuda_getCurrentRawStream(device.index)
