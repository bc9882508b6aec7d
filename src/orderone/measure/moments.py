"""Sizes of many tensors, computed where the tensors are, and fetched together.

A `Ledger` takes tensors as they come by. For each it launches a few reductions on the tensor's own device and waits for
none of them; `fetch` stacks all results and moves them to the host in one transfer. On the host itself there is nothing to
wait for, and numbers are kept as such.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor, peek_interpreter_stack

REDUCED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
SUMMED = {*REDUCED, torch.float32, torch.float64}  # what torch reduces; other precisions (float8) are widened first
BLOCK = 2**15  # entries summed one after the other: in single precision, 10^7 squares lose four digits
SQUARABLE = (1e-16, 1e13)  # the squares of 10^12 such entries have a sum in single precision

_smallest, _largest, _sum = np.minimum.reduce, np.maximum.reduce, np.add.reduce


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


EMPTY = Moments(0, 0.0, 0.0, 0.0, 0.0)
_Underway = tuple[int, tuple[Tensor, ...]]  # number of entries, reductions of them


def _larger(one: float, two: float) -> float:
    return one if math.isnan(one) or one > two else two


class Ledger:
    """Slots are numbered; `fetch` returns the moments of all of them, in order, and starts anew."""

    def __init__(self) -> None:
        self._slots: list[Moments | _Underway] = []
        self._kept: list[tuple[int, Tensor]] = []

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, x: Tensor, count: int | None = None) -> int:
        """Of a sparse tensor, give the values and the `count` of all entries."""
        self._slots.append(_sized(x, count))
        return len(self._slots) - 1

    def keep(self, x: Tensor) -> int:
        """The slot of what nobody else has, and nobody will change: sized by `settle`, together with all others."""
        self._slots.append(EMPTY)
        self._kept.append((len(self._slots) - 1, x))
        return len(self._slots) - 1

    def settle(self) -> None:
        """Between other work, most of the time for a small tensor goes into bringing code and objects back to the cache."""
        for slot, x in self._kept:
            self._slots[slot] = _sized(x)
        self._kept = []

    def fetch(self) -> list[Moments]:
        self.settle()
        slots, self._slots = self._slots, []
        arrived = iter(_to_host([slot for slot in slots if not isinstance(slot, Moments)]))
        return [slot if isinstance(slot, Moments) else next(arrived) for slot in slots]


def _sized(x: Tensor, count: int | None = None) -> Moments | _Underway:
    x = local(x.detach())
    count, x = x.numel() if count is None else count, _real(x)
    return _on_host(x, count) if x.is_cpu else (count, _elsewhere(x))


def is_measurable(x: Tensor) -> bool:
    """Real or complex, dense, and not empty here."""
    dense = x.layout == torch.strided and not (x.is_nested or x.is_meta)
    return dense and (x.is_floating_point() or x.is_complex()) and local(x).numel() > 0


def local(x: Tensor) -> Tensor:
    """The numbers themselves: of a tensor spread over processes the part that is here, so that no process waits for
    another; under torch.func all entries of all samples."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    part = getattr(x, "to_local", None)
    return x if part is None else part()


def _real(x: Tensor) -> Tensor:
    if x.is_complex():
        return x.abs()
    return x if x.dtype in SUMMED else x.float()


def _on_host(x: Tensor, count: int) -> Moments:
    """One reading from memory and three from the cache; of few numbers, what counts is the number of calls."""
    x = x.float() if x.dtype in REDUCED else x
    if not x.is_contiguous() or peek_interpreter_stack() is not None:  # under torch.func even a view has no memory
        return _carefully(x, count)
    flat = x.view(-1).numpy(force=True)
    few = flat.size < BLOCK
    low, high = (_smallest(flat), _largest(flat)) if few else torch.aminmax(x)
    largest = max(-float(low), float(high))  # not a number, if one of them is not
    if largest != 0 and not SQUARABLE[0] < largest < SQUARABLE[1]:
        return _carefully(x, count)
    squares = np.dot(flat, flat)  # BLAS makes a faster sum of squares, and one with more digits
    return Moments(count, float(squares), float(_sum(flat) if few else x.sum()), largest, float(count))


def _carefully(x: Tensor, count: int) -> Moments:
    """Of entries in any order in memory, some of them not finite, or with squares that are not."""
    low, high = torch.aminmax(x)
    largest = max(-low.item(), high.item())
    bad = 0.0 if math.isfinite(largest) else _not_finite(x).item()
    norm = torch.linalg.vector_norm(x, dtype=torch.float64).item()
    return Moments(count, norm * norm, x.sum().item(), largest, count - bad)  # norm**2 may end in an error


def _elsewhere(x: Tensor) -> tuple[Tensor, ...]:
    """Norm, sum, smallest, largest, and the number of entries that are not finite: launched, and not waited for."""
    wide = REDUCED.get(x.dtype)
    return torch.linalg.vector_norm(x, dtype=wide), x.sum(dtype=wide), *torch.aminmax(x), _not_finite(x)


def _not_finite(x: Tensor) -> Tensor:
    """Those are few as a rule, and counted exactly also in single precision."""
    return torch.isfinite(x).logical_not_().sum(dtype=REDUCED.get(x.dtype, x.dtype))


def _to_host(underway: list[_Underway]) -> Iterator[Moments]:
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
