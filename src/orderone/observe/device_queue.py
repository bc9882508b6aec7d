"""Tensors of other devices that wait to be sized together, and the transfer of their sizes.

A `DeviceQueue` holds tensors until many can be sized in one launch; `send` moves all results to the
host without waiting. If later code overwrites a waiting tensor, its version counter shows it.
Callers that cannot exclude this pass `copy=True`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from orderone.observe.tensor_facts import version
from orderone.torch_compat import current_raw_cuda_stream

SHARE = 64  # tensors may wait in 1/SHARE of a device's memory
MARK = 1.0  # added to the non-finite entries of gradients; where none arrived, sizes are zeros
MEMORY = 2**27  # bytes, where the size of that memory is not known
# norm, sum, largest absolute value, number of entries that are not finite
Size = tuple[float, float, float, float]


class Held(NamedTuple):
    """A tensor that waits to be sized."""

    slot: int
    entries: int  # including those that a sparse tensor does not store
    tensor: Tensor
    original: Tensor  # the tensor itself, or the one that it is a copy of
    version: int  # of the original


class SizedGroup(NamedTuple):
    """Sizes of several tensors of one device."""

    slots: Sequence[int]
    counts: Sequence[int]
    sizes: Tensor  # (4, slots)
    arrival: torch.cuda.Event | None = None  # of sizes in transfer
    # whether MARK was added to the non-finite entries of all tensors that exist
    marked: bool = False


class DeviceQueue:
    """Tensors of other devices that wait to be sized, by slot.

    After `send`, `overwritten` has the slots of tensors that were overwritten while they waited.
    `lost` has those among them without a copy: their sizes are wrong.
    """

    def __init__(self) -> None:
        self._held: list[Held] = []
        self._bytes = 0
        # the CUDA stream in which all held tensors were computed
        self._stream: tuple[int, torch.device] | None = None
        self._launched: list[SizedGroup] = []
        self.overwritten: set[int] = set()
        self.lost: set[int] = set()

    def hold(self, slot: int, count: int, x: Tensor, copy: bool) -> None:
        """Hold a tensor, or a copy of it, until it is sized."""
        if x.is_cuda and (self._stream is None or _stream_of(x.get_device()) != self._stream[0]):
            self.settle()
            self._stream = (_stream_of(x.get_device()), x.device)
        held = x
        if copy:
            held = x.clone()
        self._held.append(Held(slot, count, held, x, version(x)))
        self._bytes += (1 + copy) * x.nbytes
        if self._bytes > memory(x.device):
            self.settle()

    def settle(self) -> None:
        """Launch the sizing of all held tensors."""
        if not self._held:
            return
        held = self._held
        self._held = []
        self._bytes = 0
        slots: list[int] = []
        counts: list[int] = []
        tensors: list[Tensor] = []
        for entry in held:
            if version(entry.original) != entry.version:
                self.overwritten.add(entry.slot)
                if entry.tensor is entry.original:
                    self.lost.add(entry.slot)
            slots.append(entry.slot)
            counts.append(entry.entries)
            tensors.append(entry.tensor)
        with self._in_their_stream():
            self.launch(slots, counts, tensors)

    def launch(
        self, slots: Sequence[int], counts: Sequence[int], tensors: Sequence[Tensor]
    ) -> None:
        """Launch the sizing of tensors that need not be held."""
        kinds: dict[tuple[int, torch.dtype], list[int]] = {}
        for position, x in enumerate(tensors):
            kinds.setdefault((x.get_device(), x.dtype), []).append(position)
        for positions in kinds.values():
            group_slots: list[int] = []
            group_counts: list[int] = []
            group_tensors: list[Tensor] = []
            for position in positions:
                group_slots.append(slots[position])
                group_counts.append(counts[position])
                group_tensors.append(tensors[position])
            self._launched.append(
                SizedGroup(group_slots, group_counts, device_sizes(group_tensors))
            )

    def add_sizes(
        self, slots: Sequence[int], counts: Sequence[int], sizes: Tensor, marked: bool
    ) -> None:
        """Add sizes that were computed elsewhere."""
        self._launched.append(SizedGroup(slots, counts, sizes, None, marked))

    @contextmanager
    def _in_their_stream(self) -> Iterator[None]:
        """Run in the stream that computed the tensors; the current stream then waits for it."""
        if self._stream is None or _stream_of(self._stream[1].index) == self._stream[0]:
            yield
            return
        stream = torch.cuda.ExternalStream(*self._stream)
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream(self._stream[1]).wait_stream(stream)

    def send(self) -> "Transfer":
        """Send all sizes to the host: one transfer for each device (mostly there is one)."""
        self.settle()
        launched = self._launched
        self._launched = []
        kinds: dict[tuple[torch.device, bool], list[SizedGroup]] = {}
        for group in launched:
            kinds.setdefault((group.sizes.device, group.marked), []).append(group)
        return Transfer([_send(groups) for groups in kinds.values()])


def _send(groups: list[SizedGroup]) -> SizedGroup:
    """Join groups of one kind and send them to the host."""
    slots: list[int] = []
    counts: list[int] = []
    for group in groups:
        slots += group.slots
        counts += group.counts
    joined = torch.cat([group.sizes for group in groups], 1)
    marked = groups[0].marked
    if not joined.is_cuda:
        return SizedGroup(slots, counts, joined.cpu(), None, marked)
    with torch.cuda.device_of(joined):
        arrival = torch.cuda.Event()
        sent = joined.to("cpu", non_blocking=True)
        arrival.record()
    return SizedGroup(slots, counts, sent, arrival, marked)


class Transfer:
    """Sizes that may still be in transfer to the host."""

    def __init__(self, groups: list[SizedGroup]):
        self._groups = groups

    def has_arrived(self) -> bool:
        """Return whether all sizes are on the host."""
        return all(group.arrival is None or group.arrival.query() for group in self._groups)

    def wait(self) -> None:
        """Wait for the sizes, and release the pinned memory of the transfer."""
        for position, group in enumerate(self._groups):
            if group.arrival is not None:
                group.arrival.synchronize()
                ordinary = torch.empty_like(group.sizes, pin_memory=False).copy_(group.sizes)
                self._groups[position] = group._replace(sizes=ordinary, arrival=None)

    def sizes(self) -> Iterator[tuple[int, int, Size]]:
        """Wait for the sizes, and yield slots, counts and sizes of all tensors that exist."""
        self.wait()
        for group in self._groups:
            rows = zip(*group.sizes.tolist(), strict=True)
            for slot, count, (norm, total, largest, bad) in zip(
                group.slots, group.counts, rows, strict=True
            ):
                if not group.marked:
                    yield slot, count, (norm, total, largest, bad)
                elif bad >= MARK:
                    yield slot, count, (norm, total, largest, bad - MARK)


def device_sizes(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sizes, (4, tensors), of tensors of one precision on one device."""
    kernel = None
    if tensors[0].is_cuda:
        kernel = _kernel()
    if kernel is None:
        return torch.stack([_size(x) for x in tensors], 1)
    return kernel([_dense(x) for x in tensors])


def _dense(x: Tensor) -> Tensor:
    """Return the entries without gaps, in any order; copy only if there are gaps."""
    if x.is_contiguous() and not x.is_neg():
        return x
    x = x.resolve_neg()
    by_stride = sorted(range(x.dim()), key=x.stride, reverse=True)
    return x.permute(by_stride).contiguous()


@cache
def _kernel() -> Callable[[Sequence[Tensor]], Tensor] | None:
    """Return the Triton kernel, or None where Triton is missing or cannot compile."""
    try:
        from orderone.observe import triton_sizes

        triton_sizes.sizes([torch.zeros(1, device="cuda")])
    except Exception:
        return None
    return triton_sizes.sizes


def _size(x: Tensor) -> Tensor:
    wide = torch.float64
    if x.device.type == "mps":  # without double precision
        wide = torch.float32
    low, high = torch.aminmax(x)
    bad = torch.isfinite(x).logical_not_().sum(dtype=wide)
    norm = torch.linalg.vector_norm(x, dtype=wide)
    total = x.sum(dtype=wide)
    return torch.stack([norm, total, torch.maximum(-low, high).to(wide), bad])


@cache
def memory(device: torch.device) -> int:
    """Return how many bytes of waiting tensors a device may have."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // SHARE
    return MEMORY


def _stream_of(device: int) -> int:
    return current_raw_cuda_stream(device)
