"""Sizes of many tensors, computed where the tensors are, and fetched together.

A `Ledger` takes tensors one by one. It sizes tensors on the host at once, before other code can
change them. Tensors on other devices wait in a `DeviceQueue`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from orderone.observe.device_queue import DeviceQueue, Transfer, device_sizes
from orderone.observe.tensor_facts import is_here, local
from orderone.torch_compat import peek_interpreter_stack

WIDE: dict[torch.dtype, torch.dtype] = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
# precisions that torch can sum; others (float8) are converted first
SUMMED: set[torch.dtype] = {*WIDE, torch.float32, torch.float64}
FEW = 2**12  # entries; for fewer, the overhead of a call exceeds its work
# range of entries; single precision can represent the sum of 10^12 of their squares
SQUARABLE = (1e-16, 1e13)
PIECE = 2**16  # entries that are added up in the precision of the tensor; they fit into a cache
MINIMUM = np.minimum.reduce
MAXIMUM = np.maximum.reduce


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


# --- many tensors ---------------------------------------------------------------------------------


class SentMoments(NamedTuple):
    """Moments of all slots of a ledger; those from other devices may still be in transfer."""

    slots: list[Moments]
    transfer: Transfer

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

    def add_sizes(self, counts: Sequence[int], sizes: Tensor, marked: bool = False) -> range:
        """Add tensors that were sized elsewhere, (4, tensors).

        `marked` sizes are of gradients; those without a mark did not arrive, and have no moments.
        """
        first = len(self._slots)
        self._slots += [NOTHING] * len(counts)
        slots = range(first, len(self._slots))
        self.queue.add_sizes(slots, counts, sizes, marked)
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
        if not self._later:
            return
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


def sizes_of(x: Tensor) -> Tensor:
    """Return norm, sum, largest absolute value and non-finite entries: (4,), double."""
    x = _numbers(x)
    if not is_here(x):
        return device_sizes([x])[:, 0]
    entries, squares, total, largest, finite = _here(x.numel(), x)
    return torch.tensor([math.sqrt(squares), total, largest, entries - finite], dtype=torch.float64)


def _numbers(x: Tensor) -> Tensor:
    """Return the entries as real numbers of a precision that torch can sum."""
    x = local(x)
    if x.dtype in SUMMED:
        return x
    if x.is_complex():
        return x.abs()
    return x.float()


def _here(count: int, x: Tensor) -> Moments:
    """Size a tensor on the host, piece by piece, so that every piece is read from memory once.

    BLAS computes the sum of squares faster than torch, numpy the extremes. The sums of the pieces
    are added up in double precision: BLAS adds up all of a vector in its own precision, and of
    5 * 10^7 numbers it loses 1e-3.
    """
    if x.dtype in WIDE:
        x = x.float()
    under_torch_func = peek_interpreter_stack() is not None
    if under_torch_func or x.is_neg() or not x.is_contiguous():
        return _carefully(count, x)
    squares = total = largest = 0.0
    flat = x.view(-1)
    for piece in (flat,) if flat.numel() <= PIECE else flat.split(PIECE):
        numbers = piece.numpy()
        # NaN if one entry is NaN; faster than torch.aminmax
        extreme = max(-float(MINIMUM(numbers)), float(MAXIMUM(numbers)))
        if not extreme < SQUARABLE[1]:
            return _carefully(count, x)
        largest = max(largest, extreme)
        squares += float(numbers.dot(numbers))
        total += piece.sum().item()
    if largest <= SQUARABLE[0] and largest != 0:
        return _carefully(count, x)
    return Moments(count, squares, total, largest, float(count))


def _carefully(count: int, x: Tensor) -> Moments:
    """Size a tensor that is not contiguous, not finite, or whose squares overflow."""
    low, high = torch.aminmax(x)
    largest = max(-low.item(), high.item())  # NaN if one of them is NaN
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
