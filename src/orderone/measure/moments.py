"""Sizes of many tensors, computed where the tensors are, and fetched together.

A `Ledger` takes tensors as they come by. For each it launches a few reductions on the tensor's own device and waits for
none of them; `fetch` stacks all results and moves them to the host in one transfer. On the host itself there is nothing to
wait for, and numbers are kept as such.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor

REDUCED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
SUMMED = {*REDUCED, torch.float32, torch.float64}  # what torch reduces; other precisions (float8) are widened first
BLOCK = 2**15  # entries summed in one go: in single precision, 10^7 squares one after the other lose four digits
SQUARABLE = (1e-16, 1e16)  # beyond, squares leave single precision


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


def _larger(one: float, two: float) -> float:
    return one if math.isnan(one) or one > two else two


class Ledger:
    """Slots are numbered; `fetch` returns the moments of all of them, in order, and starts anew."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._values: list[tuple[Tensor | float, ...]] = []

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, x: Tensor, count: int | None = None) -> int:
        """Of a sparse tensor, give the values and the `count` of all entries."""
        x = local(x.detach())
        self._counts.append(x.numel() if count is None else count)
        self._values.append(_reductions(_real(x)))
        return len(self._counts) - 1

    def fetch(self) -> list[Moments]:
        counts, values = self._counts, self._values
        self.__init__()
        numbers = iter(_to_host([value for row in values for value in row]))
        return [_moments(count, *row) for count, row in zip(counts, zip(*[numbers] * 5, strict=True), strict=True)]


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


def _reductions(x: Tensor) -> tuple[Tensor | float, ...]:
    """Norm, sum, smallest, largest, and the number of entries that are not finite."""
    wide = REDUCED.get(x.dtype)
    norm, total = _norm(x, wide), x.sum(dtype=wide)
    low, high = torch.aminmax(x)
    if not x.is_cpu:
        return norm, total, low, high, _not_finite(x)
    low, high = low.item(), high.item()
    largest = max(-low, high)
    if not math.isfinite(largest):
        return norm.item(), total.item(), low, high, _not_finite(x).item()
    if largest and not SQUARABLE[0] < largest < SQUARABLE[1]:
        norm = torch.linalg.vector_norm(x, dtype=torch.float64)
    return norm.item(), total.item(), low, high, 0.0


def _not_finite(x: Tensor) -> Tensor:
    """Those are few as a rule, and counted exactly also in single precision."""
    return torch.isfinite(x).logical_not_().sum(dtype=REDUCED.get(x.dtype, x.dtype))


def _norm(x: Tensor, wide: torch.dtype | None) -> Tensor:
    if not x.is_cpu or x.numel() <= BLOCK:
        return torch.linalg.vector_norm(x, dtype=wide)
    flat, rest = x.reshape(-1), x.numel() % BLOCK
    norms = torch.linalg.vector_norm(flat[: x.numel() - rest].view(-1, BLOCK), dim=1, dtype=wide)
    norm = torch.linalg.vector_norm(norms)
    return torch.hypot(norm, torch.linalg.vector_norm(flat[-rest:], dtype=wide)) if rest else norm


def _moments(count: int, norm: float, total: float, low: float, high: float, bad: float) -> Moments:
    largest = math.nan if math.isnan(low) else max(-low, high)
    return Moments(count, norm * norm, total, largest, count - bad)


def _to_host(values: list[Tensor | float]) -> list[float]:
    """One transfer for each device and precision, which as a rule is one."""
    result = [math.nan if isinstance(value, Tensor) else value for value in values]
    kinds: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    for i, value in enumerate(values):
        if isinstance(value, Tensor):
            kinds.setdefault((value.device, REDUCED.get(value.dtype, value.dtype)), []).append((i, value))
    for (_, dtype), found in kinds.items():
        stacked = torch.stack([value.to(dtype) for _, value in found])
        for (i, _), number in zip(found, stacked.tolist(), strict=True):
            result[i] = number
    return result
