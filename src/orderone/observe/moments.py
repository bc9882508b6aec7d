"""Sizes of many tensors, computed where the tensors are, and fetched together.

A `Ledger` takes tensors as they come by. On the host there is nothing to wait for: they are sized
at once, before anybody can change them. Those on other devices are sized together
(`device_queue`), and `send` moves all results over at once.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from orderone.observe.device_queue import DeviceQueue, Transfer
from orderone.torch_compat import get_unwrapped, is_functorch_wrapped_tensor, peek_interpreter_stack

PLAIN: set[type[Tensor]] = {Tensor, nn.Parameter}  # not spread over processes
WIDE: dict[torch.dtype, torch.dtype] = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
# precisions that torch can sum; others (float8) are widened first
SUMMED: set[torch.dtype] = {*WIDE, torch.float32, torch.float64}
FEW = 2**12  # entries; of so few, a call takes longer than what it does
SQUARABLE = (1e-16, 1e13)  # the squares of 10^12 such entries have a sum in single precision


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

    def row(self) -> tuple[float, float, float, float]:
        """rms, mean, largest absolute value, finite fraction."""
        return self.rms, self.total / self.entries, self.largest, self.finite / self.entries


NOTHING = Moments(0, 0.0, 0.0, 0.0, 0.0)


def _larger(first: float, second: float) -> float:
    """Return the larger of the two; NaN if the first is."""
    if math.isnan(first) or first > second:
        return first
    return second


class SentMoments(NamedTuple):
    """The moments of all slots of a ledger; those from other devices may still be on their way."""

    slots: list[Moments]
    transfer: Transfer

    def moments(self) -> list[Moments]:
        """Return the moments of all slots, after they have arrived."""
        moments = self.slots.copy()
        for slot, count, (norm, total, largest, bad) in self.transfer.sizes():
            moments[slot] = Moments(count, norm * norm, total, largest, count - bad)
        return moments


class Ledger:
    """Numbered slots of tensors; `send` gives the moments of all, in order, and starts anew."""

    def __init__(self) -> None:
        self._slots: list[Moments] = []
        self._kept: list[tuple[int, int, Tensor]] = []
        self.queue: DeviceQueue = DeviceQueue()

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, x: Tensor, count: int | None = None, copy: bool = False) -> int:
        """Add a tensor and return its slot.

        Of a sparse tensor, give the values and the `count` of all entries. A tensor on another
        device is sized later; give `copy` if it may be overwritten until then.
        """
        x = _numbers(x.detach())
        count = x.numel() if count is None else count
        if is_here(x):
            self._slots.append(_here(count, x))
        else:
            self.queue.hold(len(self._slots), count, x, copy)
            self._slots.append(NOTHING)
        return len(self._slots) - 1

    def add_all(self, tensors: Iterable[Tensor]) -> range:
        """Add many tensors of other devices, and launch their sizing now.

        One after another they would take the host longer. No gradients may be recorded here.
        """
        first = len(self._slots)
        numbers = [_numbers(x) for x in tensors]
        self._slots += [NOTHING] * len(numbers)
        slots = range(first, len(self._slots))
        self.queue.launch(slots, [x.numel() for x in numbers], numbers)
        return slots

    def keep(self, x: Tensor, count: int | None = None) -> int:
        """Add a tensor that nobody changes before `settle`, which sizes all of them.

        Between other work, most of the time for a small tensor goes into bringing code back to the
        cache.
        """
        if not is_here(x):
            return self.add(x, count)
        x = _numbers(x.detach())
        count = x.numel() if count is None else count
        self._kept.append((len(self._slots), count, x))
        self._slots.append(NOTHING)
        return len(self._slots) - 1

    def settle(self) -> None:
        """Size all tensors that are kept or held."""
        self.queue.settle()
        kept = self._kept
        self._kept = []
        small_slots: list[int] = []
        small: list[tuple[int, Tensor]] = []
        for slot, count, x in kept:
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
        """Return all moments; wait for other devices."""
        return self.send().moments()


def is_here(x: Tensor) -> bool:
    """Return whether a tensor is on the host."""
    return x.is_cpu


def is_measurable(x: Tensor) -> bool:
    """Return whether a tensor is real or complex, dense, and not empty here."""
    if not (x.is_floating_point() or x.is_complex()):
        return False
    if x.layout != torch.strided or x.is_nested or x.is_meta:
        return False
    return x.numel() > 0 and (type(x) in PLAIN or local(x).numel() > 0)


def is_plain(x: Tensor) -> bool:
    """Return whether a tensor is neither spread over processes nor inside torch.func."""
    return type(x) in PLAIN and not is_functorch_wrapped_tensor(x)


def local(x: Tensor) -> Tensor:
    """Return the numbers themselves.

    Of a tensor spread over processes this is the part that is here, so that no process waits for
    another. Under torch.func it is all entries of all samples.
    """
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    if type(x) in PLAIN:
        return x
    to_local = getattr(x, "to_local", None)
    if to_local is None:
        return x
    return to_local()


def _numbers(x: Tensor) -> Tensor:
    """Return the numbers to be sized, as real numbers."""
    x = local(x)
    if x.dtype in SUMMED:
        return x
    if x.is_complex():
        return x.abs()
    return x.float()


def _here(count: int, x: Tensor) -> Moments:
    """Size a tensor on the host.

    BLAS makes a faster sum of squares, and one with more digits.
    """
    if x.dtype in WIDE:
        x = x.float()
    low, high = torch.aminmax(x)
    largest = max(-low.item(), high.item())  # not a number, if one of them is not
    squarable = SQUARABLE[0] < largest < SQUARABLE[1] or largest == 0
    under_torch_func = peek_interpreter_stack() is not None
    readable = x.is_contiguous() and not x.is_neg() and not under_torch_func
    if not (squarable and readable):
        return _carefully(count, x, largest)
    flat = x.numpy().reshape(-1)
    return Moments(count, float(np.dot(flat, flat)), x.sum().item(), largest, float(count))


def _carefully(count: int, x: Tensor, largest: float) -> Moments:
    """Size a tensor that lies in any order, is not finite, or has squares that are not."""
    bad = 0.0 if math.isfinite(largest) else _not_finite(x).item()
    norm = torch.linalg.vector_norm(x, dtype=torch.float64).item()
    # norm**2 may raise an OverflowError, norm * norm does not
    return Moments(count, norm * norm, x.sum().item(), largest, count - bad)


def _together(tensors: list[tuple[int, Tensor]]) -> Iterator[Moments]:
    """Size many small tensors as parts of one, which is small enough for double precision."""
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
    """Count the entries that are not finite: few, and exact also in single precision."""
    return torch.isfinite(x).logical_not_().sum(dtype=WIDE.get(x.dtype, x.dtype))
