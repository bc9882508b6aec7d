"""Sizes of many tensors, computed where the tensors are, and fetched together.

A `Ledger` takes tensors as they come by. On the host there is nothing to wait for: they are sized
at once, before anybody can change them. Those on other devices are sized together (`elsewhere`),
and `send` moves all results over at once.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from orderone.observe.device_queue import Arriving, Elsewhere
from orderone.torch_compat import get_unwrapped, is_functorch_wrapped_tensor, peek_interpreter_stack

PLAIN = {Tensor, nn.Parameter}  # classes of tensors that are all here
WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
SUMMED = {
    *WIDE,
    torch.float32,
    torch.float64,
}  # what torch reduces; other precisions (float8) are widened first
FEW = 2**12  # entries; of so few, a call takes longer than what it does
SQUARABLE = (1e-16, 1e13)  # the squares of 10^12 such entries have a sum in single precision


class Moments(NamedTuple):
    """Of one tensor or of several together: enough to add them up."""

    entries: int
    squares: float
    total: float
    largest: float
    finite: float

    def __add__(self, other: "Moments") -> "Moments":  # pyright: ignore[reportIncompatibleMethodOverride]
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


def _larger(one: float, two: float) -> float:
    return one if math.isnan(one) or one > two else two


class Sent(NamedTuple):
    """The moments of all slots of a ledger; those from other devices may still be on their way."""

    slots: list[Moments]
    arriving: Arriving

    def moments(self) -> list[Moments]:
        found = self.slots.copy()
        for slot, count, (norm, total, largest, bad) in self.arriving.sizes():
            found[slot] = Moments(count, norm * norm, total, largest, count - bad)
        return found


class Ledger:
    """Slots are numbered; `send` gives the moments of all of them, in order, and starts anew."""

    def __init__(self) -> None:
        self._slots: list[Moments] = []
        self._kept: list[tuple[int, int, Tensor]] = []
        self.elsewhere = Elsewhere()

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, x: Tensor, count: int | None = None, copy: bool = False) -> int:
        """Of a sparse tensor, give the values and the `count` of all entries. What is on another
        device is sized later, and from a `copy` if it may be written over until then."""
        x = _numbers(x.detach())
        count = x.numel() if count is None else count
        if is_here(x):
            self._slots.append(_here(count, x))
        else:
            self.elsewhere.hold(len(self._slots), count, x, copy)
            self._slots.append(NOTHING)
        return len(self._slots) - 1

    def add_all(self, tensors: Iterable[Tensor]) -> range:
        """Of many that are there now, all on other devices, where no gradients are recorded: one
        after another they would take the host longer."""
        first = len(self._slots)
        numbers = [_numbers(x) for x in tensors]
        self._slots += [NOTHING] * len(numbers)
        slots = range(first, len(self._slots))
        self.elsewhere.launch(slots, [x.numel() for x in numbers], numbers)
        return slots

    def keep(self, x: Tensor, count: int | None = None) -> int:
        """The same for a tensor that nobody changes before `settle`, which sizes all of them:
        between other work, most of the time for a small one goes into bringing code back to the
        cache."""
        if not is_here(x):
            return self.add(x, count)
        x = _numbers(x.detach())
        self._kept.append((len(self._slots), x.numel() if count is None else count, x))
        self._slots.append(NOTHING)
        return len(self._slots) - 1

    def settle(self) -> None:
        self.elsewhere.settle()
        kept = self._kept
        self._kept = []
        small = [(slot, count, x) for slot, count, x in kept if x.numel() <= FEW]
        sizes = _together([(count, x) for _, count, x in small]) if small else []
        for (slot, _, _), size in zip(small, sizes, strict=True):
            self._slots[slot] = size
        for slot, count, x in kept:
            if self._slots[slot] is NOTHING:
                self._slots[slot] = _here(count, x)

    def send(self) -> Sent:
        """Without waiting for other devices."""
        self.settle()
        slots = self._slots
        self._slots = []
        return Sent(slots, self.elsewhere.send())

    def fetch(self) -> list[Moments]:
        return self.send().moments()


def is_here(x: Tensor) -> bool:
    return x.is_cpu


def is_measurable(x: Tensor) -> bool:
    """Real or complex, dense, and not empty here."""
    if (
        not (x.is_floating_point() or x.is_complex())
        or x.layout != torch.strided
        or x.is_nested
        or x.is_meta
    ):
        return False
    return x.numel() > 0 and (type(x) in PLAIN or local(x).numel() > 0)


def is_plain(x: Tensor) -> bool:
    """Neither spread over processes nor inside a transformation of torch.func."""
    return type(x) in PLAIN and not is_functorch_wrapped_tensor(x)


def local(x: Tensor) -> Tensor:
    """The numbers themselves: of a tensor spread over processes the part that is here, so that no
    process waits for another; under torch.func all entries of all samples."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    part = None if type(x) in PLAIN else getattr(x, "to_local", None)
    return x if part is None else part()


def _numbers(x: Tensor) -> Tensor:
    """Those to be sized, as real numbers."""
    x = local(x)
    if x.dtype in SUMMED:
        return x
    return x.abs() if x.is_complex() else x.float()


def _here(count: int, x: Tensor) -> Moments:
    """BLAS makes a faster sum of squares, and one with more digits."""
    x = x.float() if x.dtype in WIDE else x
    low, high = torch.aminmax(x)
    largest = max(-low.item(), high.item())  # not a number, if one of them is not
    squarable = SQUARABLE[0] < largest < SQUARABLE[1] or largest == 0
    readable = (
        x.is_contiguous() and not x.is_neg() and peek_interpreter_stack() is None
    )  # not under torch.func
    if not (squarable and readable):
        return _carefully(count, x, largest)
    flat = x.numpy().reshape(-1)
    return Moments(count, float(np.dot(flat, flat)), x.sum().item(), largest, float(count))


def _carefully(count: int, x: Tensor, largest: float) -> Moments:
    """In any order in memory, not finite, or with squares that are not."""
    bad = 0.0 if math.isfinite(largest) else _not_finite(x).item()
    norm = torch.linalg.vector_norm(x, dtype=torch.float64).item()
    return Moments(
        count, norm * norm, x.sum().item(), largest, count - bad
    )  # norm**2 may end in an error


def _together(tensors: list[tuple[int, Tensor]]) -> Iterator[Moments]:
    """Of many small tensors, as parts of one that is small enough for double precision."""
    joined = torch.cat([x.reshape(-1) for _, x in tensors]).double().numpy()
    starts = np.cumsum([0, *(x.numel() for _, x in tensors[:-1])])
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
    """Those are few as a rule, and counted exactly also in single precision."""
    return torch.isfinite(x).logical_not_().sum(dtype=WIDE.get(x.dtype, x.dtype))
