"""Sizes of many tensors, computed where the tensors are, and fetched together.

A `Ledger` takes tensors one by one. It sizes tensors on the host at once, before other code can
change them. A `DeviceQueue` holds tensors on other devices until many can be sized together, and
`send` moves all results to the host without waiting. If later code overwrites a waiting tensor, its
version counter shows it. Callers that cannot exclude this pass `copy=True`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from orderone.torch_compat import (
    current_raw_cuda_stream,
    get_unwrapped,
    is_functorch_wrapped_tensor,
    peek_interpreter_stack,
    version_counter,
)

PLAIN: set[type[Tensor]] = {Tensor, nn.Parameter}  # not distributed over processes
WIDE: dict[torch.dtype, torch.dtype] = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
# precisions that torch can sum; others (float8) are converted first
SUMMED: set[torch.dtype] = {*WIDE, torch.float32, torch.float64}
FEW = 2**12  # entries; for fewer, the overhead of a call exceeds its work
# range of entries; single precision can represent the sum of 10^12 of their squares
SQUARABLE = (1e-16, 1e13)
SHARE = 64  # tensors may wait in 1/SHARE of a device's memory
MEMORY = 2**27  # bytes, where the size of that memory is not known
# norm, sum, largest absolute value, number of entries that are not finite
Size = tuple[float, float, float, float]


class Moments(NamedTuple):
    """Moments of one tensor or of several together; they can be added up."""

    entries: int
    squares: float
    total: float
    largest: float
    finite: float

    def __add__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, other: "Moments"
    ) -> "Moments":
        return Moments(
            self.entries + other.entries,
            self.squares + other.squares,
            self.total + other.total,
            _larger(self.largest, other.largest),
            self.finite + other.finite,
        )

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / self.entries)

    def times(self, factor: float) -> "Moments":
        """Return the moments of the tensor times a positive number."""
        return Moments(
            self.entries,
            self.squares * factor**2,
            self.total * factor,
            self.largest * factor,
            self.finite,
        )

    def row(self) -> tuple[float, float, float, float]:
        """Return rms, mean, largest absolute value, fraction of finite entries."""
        return self.rms, self.total / self.entries, self.largest, self.finite / self.entries


NOTHING = Moments(0, 0.0, 0.0, 0.0, 0.0)


def _larger(first: float, second: float) -> float:
    """Return the larger of the two; NaN if the first is NaN."""
    if math.isnan(first) or first > second:
        return first
    return second


# --- facts about a tensor -------------------------------------------------------------------------


def is_here(x: Tensor) -> bool:
    """Return whether a tensor is on the host."""
    return x.is_cpu


def is_measurable(x: Tensor) -> bool:
    """Return whether a tensor is real or complex, dense, and not empty in this process."""
    if not (x.is_floating_point() or x.is_complex()):
        return False
    if x.layout != torch.strided or x.is_nested or x.is_meta:
        return False
    return x.numel() > 0 and (type(x) in PLAIN or local(x).numel() > 0)


def is_plain(x: Tensor) -> bool:
    """Return whether a tensor is neither distributed over processes nor inside torch.func."""
    return type(x) in PLAIN and not is_functorch_wrapped_tensor(x)


def local(x: Tensor) -> Tensor:
    """Return a plain tensor with the numbers of `x`.

    If `x` is distributed over processes, this is the part of this process, so that no process waits
    for another. Under torch.func it has all entries of all samples.
    """
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    if type(x) in PLAIN:
        return x
    to_local = getattr(x, "to_local", None)
    if to_local is None:
        return x
    return to_local()


def version(x: Tensor) -> int:
    """Return the number of writes into a tensor; -1 for tensors of inference mode.

    Tensors of inference mode have no counter.
    """
    try:
        return version_counter(x)
    except RuntimeError:
        return -1


# --- many tensors ---------------------------------------------------------------------------------


class SentMoments(NamedTuple):
    """Moments of all slots of a ledger; those from other devices may still be in transfer."""

    slots: list[Moments]
    transfer: "Transfer"

    def moments(self) -> list[Moments]:
        """Wait for the transfer and return the moments of all slots."""
        moments = self.slots.copy()
        for slot, count, (norm, total, largest, bad) in self.transfer.sizes():
            moments[slot] = Moments(count, norm * norm, total, largest, count - bad)
        return moments


class Ledger:
    """Numbered slots of tensors; `send` returns the moments of all slots and empties the ledger."""

    def __init__(self) -> None:
        self._slots: list[Moments] = []
        self._later: list[tuple[int, int, Tensor]] = []  # slot, count, tensor to size in `settle`
        self.queue: DeviceQueue = DeviceQueue()

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, x: Tensor, count: int | None = None, copy: bool = False) -> int:
        """Add a tensor and return its slot.

        For a sparse tensor, pass its values and the `count` of all entries. A tensor on another
        device is sized later; pass `copy=True` if it may be overwritten until then.
        """
        x = _numbers(x.detach())
        if count is None:
            count = x.numel()
        if is_here(x):
            self._slots.append(_here(count, x))
        else:
            self.queue.hold(len(self._slots), count, x, copy)
            self._slots.append(NOTHING)
        return len(self._slots) - 1

    def add_all(self, tensors: Iterable[Tensor]) -> range:
        """Add many tensors of other devices, and launch their sizing now.

        This takes the host less time than adding them one by one. Call it where autograd is off.
        """
        first = len(self._slots)
        numbers = [_numbers(x) for x in tensors]
        self._slots += [NOTHING] * len(numbers)
        slots = range(first, len(self._slots))
        self.queue.launch(slots, [x.numel() for x in numbers], numbers)
        return slots

    def keep(self, x: Tensor, count: int | None = None) -> int:
        """Add a tensor that does not change before `settle`, which sizes it.

        For small tensors this is faster: sizing them one by one between other work mostly waits for
        code to be loaded into the cache.
        """
        if not is_here(x):
            return self.add(x, count)
        x = _numbers(x.detach())
        if count is None:
            count = x.numel()
        self._later.append((len(self._slots), count, x))
        self._slots.append(NOTHING)
        return len(self._slots) - 1

    def settle(self) -> None:
        """Size all tensors that wait for it."""
        self.queue.settle()
        later = self._later
        self._later = []
        small_slots: list[int] = []
        small: list[tuple[int, Tensor]] = []
        for slot, count, x in later:
            if x.numel() <= FEW:
                small_slots.append(slot)
                small.append((count, x))
            else:
                self._slots[slot] = _here(count, x)
        if small:
            for slot, size in zip(small_slots, _together(small), strict=True):
                self._slots[slot] = size

    def send(self) -> SentMoments:
        """Return all moments, without waiting for other devices."""
        self.settle()
        slots = self._slots
        self._slots = []
        return SentMoments(slots, self.queue.send())

    def fetch(self) -> list[Moments]:
        """Return all moments, after waiting for other devices."""
        return self.send().moments()


# --- tensors on the host --------------------------------------------------------------------------


def _numbers(x: Tensor) -> Tensor:
    """Return the entries as real numbers of a precision that torch can sum."""
    x = local(x)
    if x.dtype in SUMMED:
        return x
    if x.is_complex():
        return x.abs()
    return x.float()


def _here(count: int, x: Tensor) -> Moments:
    """Size a tensor on the host.

    BLAS computes the sum of squares faster and more precisely than torch.
    """
    if x.dtype in WIDE:
        x = x.float()
    low, high = torch.aminmax(x)
    largest = max(-low.item(), high.item())  # NaN if one of them is NaN
    squarable = SQUARABLE[0] < largest < SQUARABLE[1] or largest == 0
    under_torch_func = peek_interpreter_stack() is not None
    readable = x.is_contiguous() and not x.is_neg() and not under_torch_func
    if not (squarable and readable):
        return _carefully(count, x, largest)
    flat = x.numpy().reshape(-1)
    return Moments(count, float(np.dot(flat, flat)), x.sum().item(), largest, float(count))


def _carefully(count: int, x: Tensor, largest: float) -> Moments:
    """Size a tensor that is not contiguous, not finite, or whose squares overflow."""
    bad = 0.0
    if not math.isfinite(largest):
        bad = _not_finite(x).item()
    norm = torch.linalg.vector_norm(x, dtype=torch.float64).item()
    # norm**2 may raise an OverflowError, norm * norm does not
    return Moments(count, norm * norm, x.sum().item(), largest, count - bad)


def _together(tensors: list[tuple[int, Tensor]]) -> Iterator[Moments]:
    """Join many small tensors into one, and size its parts in double precision."""
    flat = [x.reshape(-1) for _, x in tensors]
    joined = torch.cat(flat).double().numpy()
    starts = np.cumsum([0, *(x.numel() for x in flat[:-1])])
    with np.errstate(all="ignore"):
        columns = (
            np.add.reduceat(np.square(joined), starts),
            np.add.reduceat(joined, starts),
            np.maximum.reduceat(np.abs(joined), starts),
            np.add.reduceat(~np.isfinite(joined), starts, dtype=np.float64),
        )
    for (count, _), squares, total, largest, bad in zip(
        tensors, *(column.tolist() for column in columns), strict=True
    ):
        yield Moments(count, squares, total, largest, count - bad)


def _not_finite(x: Tensor) -> Tensor:
    """Count the entries that are not finite, in a precision that represents the number exactly."""
    return torch.isfinite(x).logical_not_().sum(dtype=WIDE.get(x.dtype, x.dtype))


# --- tensors on other devices ---------------------------------------------------------------------


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
        by_device: dict[torch.device, list[SizedGroup]] = {}
        for group in launched:
            by_device.setdefault(group.sizes.device, []).append(group)
        return Transfer([_send(groups) for groups in by_device.values()])


def _send(groups: list[SizedGroup]) -> SizedGroup:
    """Join groups of one device and send them to the host."""
    slots: list[int] = []
    counts: list[int] = []
    for group in groups:
        slots += group.slots
        counts += group.counts
    joined = torch.cat([group.sizes for group in groups], 1)
    if not joined.is_cuda:
        return SizedGroup(slots, counts, joined.cpu())
    with torch.cuda.device_of(joined):
        arrival = torch.cuda.Event()
        sent = joined.to("cpu", non_blocking=True)
        arrival.record()
    return SizedGroup(slots, counts, sent, arrival)


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
        """Wait for the sizes, and yield slots, counts and sizes."""
        self.wait()
        for group in self._groups:
            rows = zip(*group.sizes.tolist(), strict=True)
            yield from zip(group.slots, group.counts, rows, strict=True)


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
