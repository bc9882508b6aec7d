"""Sizes of tensors on other devices: held until many can be sized together, launched and sent over
without waiting.

What is held by reference may be written over by code that follows, and a tensor's version tells so.
Whoever does not know that nothing will, asks for a copy.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from orderone.torch_compat import current_raw_cuda_stream, version_counter

SHARE = 64  # of a device's memory, one such part may be held
MEMORY = 2**27  # bytes, where that is not known
Size = tuple[
    float, float, float, float
]  # norm, sum, largest absolute value, number of entries that are not finite
Held = tuple[
    int, int, Tensor, Tensor, int
]  # slot, count, tensor, what it is a copy of (or itself), version of that


class Batch(NamedTuple):
    slots: Sequence[int]
    counts: Sequence[int]  # of entries, also of those that a sparse tensor does not hold
    sizes: Tensor  # (4, slots)
    here: torch.cuda.Event | None = None  # when they have arrived, if they are on their way


class Elsewhere:
    """Tensors by slot. After `send`, `overwritten` has the slots of those that somebody has written
    into while they were held, and `lost` those among them of which there was no copy: their sizes
    are not what they were."""

    def __init__(self) -> None:
        self._held: list[Held] = []
        self._bytes = 0
        self._stream: tuple[int, torch.device] | None = (
            None  # of CUDA, in which all that is held was computed
        )
        self._underway: list[Batch] = []
        self.overwritten: set[int] = set()
        self.lost: set[int] = set()

    def hold(self, slot: int, count: int, x: Tensor, copy: bool) -> None:
        if x.is_cuda and (self._stream is None or _stream_of(x.get_device()) != self._stream[0]):
            self.settle()
            self._stream = _stream_of(x.get_device()), x.device
        self._held.append((slot, count, x.clone() if copy else x, x, version(x)))
        self._bytes += (1 + copy) * x.nbytes
        if self._bytes > memory(x.device):
            self.settle()

    def settle(self) -> None:
        """Launch the sizing of all that is held."""
        held = self._held
        self._held = []
        self._bytes = 0
        for slot, _, x, original, seen in held:
            if version(original) != seen:
                self.overwritten.add(slot)
                if x is original:
                    self.lost.add(slot)
        with self._after_its_own_work():
            self.launch(
                [one[0] for one in held], [one[1] for one in held], [one[2] for one in held]
            )

    def launch(
        self, slots: Sequence[int], counts: Sequence[int], tensors: Sequence[Tensor]
    ) -> None:
        """Of tensors that need not be held."""
        kinds: dict[tuple[int, torch.dtype], list[int]] = {}
        for k, x in enumerate(tensors):
            kinds.setdefault((x.get_device(), x.dtype), []).append(k)
        for members in kinds.values():
            own = sizes([tensors[k] for k in members])
            self._underway.append(
                Batch([slots[k] for k in members], [counts[k] for k in members], own)
            )

    @contextmanager
    def _after_its_own_work(self) -> Iterator[None]:
        """In the stream that computed it, on which the present one then waits."""
        if self._stream is None or _stream_of(self._stream[1].index) == self._stream[0]:
            yield
            return
        stream = torch.cuda.ExternalStream(*self._stream)
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream(self._stream[1]).wait_stream(stream)

    def send(self) -> "Arriving":
        """All that was launched, on its way here: one transfer for each device, which as a rule is
        one."""
        self.settle()
        underway = self._underway
        self._underway = []
        devices: dict[torch.device, list[Batch]] = {}
        for batch in underway:
            devices.setdefault(batch.sizes.device, []).append(batch)
        return Arriving([_sent(batches) for batches in devices.values()])


def _sent(batches: list[Batch]) -> Batch:
    slots = [slot for batch in batches for slot in batch.slots]
    counts = [count for batch in batches for count in batch.counts]
    found = torch.cat([batch.sizes for batch in batches], 1)
    if not found.is_cuda:
        return Batch(slots, counts, found.cpu())
    with torch.cuda.device_of(found):
        here = torch.cuda.Event()
        sent = found.to("cpu", non_blocking=True)
        here.record()
    return Batch(slots, counts, sent, here)


class Arriving:
    """Sizes that may still be on their way."""

    def __init__(self, batches: list[Batch]):
        self._batches = batches

    def is_here(self) -> bool:
        return all(batch.here is None or batch.here.query() for batch in self._batches)

    def land(self) -> None:
        """Wait for them, and leave the memory that transfers need."""
        for k, batch in enumerate(self._batches):
            if batch.here is not None:
                batch.here.synchronize()
                ordinary = torch.empty_like(batch.sizes, pin_memory=False).copy_(batch.sizes)
                self._batches[k] = batch._replace(sizes=ordinary, here=None)

    def sizes(self) -> Iterator[tuple[int, int, Size]]:
        """Slots, counts, sizes."""
        self.land()
        for batch in self._batches:
            yield from zip(
                batch.slots, batch.counts, zip(*batch.sizes.tolist(), strict=True), strict=True
            )


def sizes(tensors: Sequence[Tensor]) -> Tensor:
    """The four, (4, tensors), of tensors of one precision on one device."""
    kernel = _kernel() if tensors[0].is_cuda else None
    if kernel is None:
        return torch.stack([_size(x) for x in tensors], 1)
    return kernel([x if x.is_contiguous() and not x.is_neg() else _dense(x) for x in tensors])


def _dense(x: Tensor) -> Tensor:
    """In whatever order: if it is dense, as it lies in memory."""
    x = x.resolve_neg()
    as_it_lies = x.permute(sorted(range(x.dim()), key=x.stride, reverse=True))
    return as_it_lies.contiguous()  # itself, if nothing is between its entries


@cache
def _kernel() -> Callable[[Sequence[Tensor]], Tensor] | None:
    """If Triton is there, and can do here what it needs to: compile."""
    try:
        from orderone.observe import triton_sizes

        triton_sizes.sizes([torch.zeros(1, device="cuda")])
    except Exception:
        return None
    return triton_sizes.sizes


def _size(x: Tensor) -> Tensor:
    wide = (
        torch.float32 if x.device.type == "mps" else torch.float64
    )  # in double precision, if there is any
    low, high = torch.aminmax(x)
    bad = torch.isfinite(x).logical_not_().sum(dtype=wide)
    norm = torch.linalg.vector_norm(x, dtype=wide)
    total = x.sum(dtype=wide)
    return torch.stack([norm, total, torch.maximum(-low, high).to(wide), bad])


@cache
def memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // SHARE
    return MEMORY


def version(x: Tensor) -> int:
    try:
        return version_counter(x)
    except RuntimeError:  # of inference: it has none, and nobody may write into it
        return -1


def _stream_of(device: int) -> int:
    return current_raw_cuda_stream(device)
