"""Sizes of many tensors, computed where the tensors are, and fetched together.

A `Ledger` takes tensors as they come by. For each it launches a few reductions on the tensor's own device and waits for
none of them; `fetch` stacks all results and moves them to the host in one transfer. On the host itself there is nothing to
wait for, and numbers are kept as such.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor, peek_interpreter_stack

REDUCED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
SUMMED = {*REDUCED, torch.float32, torch.float64}  # what torch reduces; other precisions (float8) are widened first
FEW = 2**12  # entries; of so few, a call takes longer than what it does
SQUARABLE = (1e-16, 1e13)  # the squares of 10^12 such entries have a sum in single precision


@dataclass(frozen=True, slots=True)
class Moments:
    """Of one tensor or of several together: enough to add them up."""

    count: int
    squares: float
    total: float
    largest: float
    finite: float

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(
            self.count + other.count,
            self.squares + other.squares,
            self.total + other.total,
            _larger(self.largest, other.largest),
            self.finite + other.finite,
        )

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / self.count)

    def row(self) -> tuple[float, float, float, float]:
        """rms, mean, largest absolute value, finite fraction."""
        return self.rms, self.total / self.count, self.largest, self.finite / self.count


NOTHING = Moments(0, 0.0, 0.0, 0.0, 0.0)


class Underway(NamedTuple):
    """What a device has been asked for."""

    entries: int
    reductions: tuple[Tensor, ...]


_Slot = (
    Moments | Underway | tuple[int, float, float, float, float]
)  # or what moments will be made of: later, all at once


def _larger(one: float, two: float) -> float:
    return one if math.isnan(one) or one > two else two


class Ledger:
    """Slots are numbered; `fetch` returns the moments of all of them, in order, and starts anew."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._kept: list[tuple[int, int, Tensor]] = []

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, x: Tensor, count: int | None = None) -> int:
        """Of a sparse tensor, give the values and the `count` of all entries."""
        self._slots.append(_sized(*_numbers(x, count)))
        return len(self._slots) - 1

    def keep(self, x: Tensor, count: int | None = None) -> int:
        """The same for a tensor that nobody changes before `settle`, which sizes all of them: between other work, most of
        the time for a small one goes into bringing code back to the cache."""
        self._kept.append((len(self._slots), *_numbers(x, count)))
        self._slots.append(NOTHING)
        return len(self._slots) - 1

    def settle(self) -> None:
        kept, self._kept = self._kept, []
        small = [(slot, count, x) for slot, count, x in kept if x.is_cpu and x.numel() <= FEW]
        sizes = _together([(count, x) for _, count, x in small]) if small else []
        for (slot, _, _), size in zip(small, sizes, strict=True):
            self._slots[slot] = size
        for slot, count, x in kept:
            if self._slots[slot] is NOTHING:
                self._slots[slot] = _sized(count, x)

    def fetch(self) -> list[Moments]:
        self.settle()
        slots, self._slots = self._slots, []
        arrived = iter(_to_host([slot for slot in slots if isinstance(slot, Underway)]))
        return [_read(slot, arrived) for slot in slots]


def _read(slot: _Slot, arrived: Iterator[Moments]) -> Moments:
    if isinstance(slot, Underway):
        return next(arrived)
    return Moments(*slot) if isinstance(slot, tuple) else slot


def is_measurable(x: Tensor) -> bool:
    """Real or complex, dense, and not empty here."""
    dense = x.layout == torch.strided and not (x.is_nested or x.is_meta)
    full = x.numel() > 0 and (type(x) is Tensor or local(x).numel() > 0)
    return dense and full and (x.is_floating_point() or x.is_complex())


def local(x: Tensor) -> Tensor:
    """The numbers themselves: of a tensor spread over processes the part that is here, so that no process waits for
    another; under torch.func all entries of all samples."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    part = None if type(x) is Tensor else getattr(x, "to_local", None)
    return x if part is None else part()


def _numbers(x: Tensor, count: int | None) -> tuple[int, Tensor]:
    """How many there are, and those to be sized, as real numbers."""
    x = local(x.detach())
    count = x.numel() if count is None else count
    if x.dtype in SUMMED:
        return count, x
    return count, x.abs() if x.is_complex() else x.float()


def _sized(count: int, x: Tensor) -> _Slot:
    return _here(count, x) if x.is_cpu else Underway(count, _elsewhere(x))


def _here(count: int, x: Tensor) -> _Slot:
    """BLAS makes a faster sum of squares, and one with more digits."""
    x = x.float() if x.dtype in REDUCED else x
    low, high = torch.aminmax(x)
    largest = max(-low.item(), high.item())  # not a number, if one of them is not
    squarable = SQUARABLE[0] < largest < SQUARABLE[1] or largest == 0
    readable = x.is_contiguous() and not x.is_neg() and peek_interpreter_stack() is None  # not under torch.func
    if not (squarable and readable):
        return _carefully(count, x, largest)
    flat = x.numpy().reshape(-1)
    return count, float(np.dot(flat, flat)), x.sum().item(), largest, float(count)


def _carefully(count: int, x: Tensor, largest: float) -> Moments:
    """In any order in memory, not finite, or with squares that are not."""
    bad = 0.0 if math.isfinite(largest) else _not_finite(x).item()
    norm = torch.linalg.vector_norm(x, dtype=torch.float64).item()
    return Moments(count, norm * norm, x.sum().item(), largest, count - bad)  # norm**2 may end in an error


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
    for (count, _), squares, total, largest, bad in zip(tensors, *(column.tolist() for column in columns), strict=True):
        yield Moments(count, squares, total, largest, count - bad)


def _elsewhere(x: Tensor) -> tuple[Tensor, ...]:
    """Norm, sum, smallest, largest, and the number of entries that are not finite: launched, and not waited for."""
    wide = REDUCED.get(x.dtype)
    return torch.linalg.vector_norm(x, dtype=wide), x.sum(dtype=wide), *torch.aminmax(x), _not_finite(x)


def _not_finite(x: Tensor) -> Tensor:
    """Those are few as a rule, and counted exactly also in single precision."""
    return torch.isfinite(x).logical_not_().sum(dtype=REDUCED.get(x.dtype, x.dtype))


def _to_host(underway: list[Underway]) -> Iterator[Moments]:
    """One transfer for each device and precision, which as a rule is one."""
    numbers: list[float] = [math.nan] * (5 * len(underway))
    kinds: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    for i, value in enumerate(value for _, values in underway for value in values):
        kinds.setdefault((value.device, REDUCED.get(value.dtype, value.dtype)), []).append((i, value))
    for (_, dtype), found in kinds.items():
        stacked = torch.stack([value.to(dtype) for _, value in found])
        for (i, _), number in zip(found, stacked.tolist(), strict=True):
            numbers[i] = number
    for i, (count, _) in enumerate(underway):
        norm, total, low, high, bad = numbers[5 * i : 5 * i + 5]
        yield Moments(count, norm * norm, total, math.nan if math.isnan(low) else max(-low, high), count - bad)
