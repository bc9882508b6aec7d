"""Size of a tensor at initialization: measured in blocks, pooled over equal layers, made exact."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from orderone.observe.tensor_facts import is_here, is_plain
from orderone.planning.counterparts import stack_of

BLOCK = 1 << 16  # entries of a tensor that are measured together


@dataclass(frozen=True)
class Initial:
    """Initial size of a tensor: its root mean square, and the value if all entries are equal."""

    rms: float
    constant: float | None = None


def measure(tensor: Tensor) -> Initial:
    """Return the present size of a tensor."""
    value = tensor.detach()
    if value.numel() == 0:
        return Initial(0.0, 0.0)
    if value.is_complex():
        value = torch.view_as_real(value)
    elif not value.is_floating_point():  # a table of numbers, or quantized weights
        value = value.double()
    if not _varies(value):
        low, high = _extremes(value)
        if low == high:
            return Initial(abs(low), low)
    return Initial(_norm(value) / math.sqrt(value.numel()))


def _varies(value: Tensor) -> bool:
    """Return whether the first and the last entry of a large tensor on the host differ.

    If they do, the tensor need not be read for its extremes.
    """
    if value.numel() <= BLOCK or not is_plain(value) or not is_here(value):
        return False
    first = value[(0,) * value.dim()]
    last = value[(-1,) * value.dim()]
    return first.item() != last.item()


def _norm(value: Tensor) -> float:
    """Return the norm in double precision.

    On the host torch copies a tensor to sum it in another precision: large ones are read in blocks.
    """
    in_blocks = value.numel() > BLOCK and is_plain(value) and is_here(value)
    if not in_blocks or not value.is_contiguous():
        return _number(torch.linalg.vector_norm(value, dtype=torch.float64))
    blocks = value.view(-1).split(BLOCK)
    norms = [torch.linalg.vector_norm(block, dtype=torch.float64).item() for block in blocks]
    return math.hypot(*norms)


def _extremes(value: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest entry; in one pass where the tensor is plain."""
    if is_plain(value):
        low, high = torch.aminmax(value)
        return low.item(), high.item()
    return _number(value.min()), _number(value.max())


def _number(value: Tensor) -> float:
    full = getattr(value, "full_tensor", None)  # a DTensor is distributed over processes
    if full:
        value = full()
    return float(value)


def pooled(values: Mapping[str, Initial], entries: Mapping[str, int]) -> dict[str, Initial]:
    """Average the sizes of layers that are initialized alike: this is less noisy."""
    stacks: dict[str, list[Initial]] = {}
    for name, value in values.items():
        stacks.setdefault(stack_of(name), []).append(value)
    pools = {stack: _Pool(layers) for stack, layers in stacks.items()}
    result: dict[str, Initial] = {}
    for name, value in values.items():
        noise = 5 / math.sqrt(max(entries[name], 1))  # of the difference of two layers
        result[name] = pools[stack_of(name)].average(value, min(noise, 0.1))
    return result


class _Pool:
    """Sizes of the layers of one stack, sorted, so that layers of similar size are found fast."""

    def __init__(self, layers: Iterable[Initial]):
        random = [layer.rms for layer in layers if layer.constant is None]
        sizes = [rms for rms in random if math.isfinite(rms)]
        self.order: list[int] = sorted(range(len(sizes)), key=lambda k: sizes[k])
        self.sizes = sizes
        self.sorted: list[float] = [sizes[k] for k in self.order]
        self._averages: dict[tuple[int, int], float] = {}  # by first and last place

    def average(self, layer: Initial, noise: float) -> Initial:
        """Average the size of a layer with layers that agree up to noise.

        An initialization may depend on the layer.
        """
        if layer.constant is not None or not math.isfinite(layer.rms):
            return layer
        first = bisect_left(self.sorted, -noise * layer.rms, key=lambda rms: rms - layer.rms)
        last = bisect_right(self.sorted, noise * layer.rms, key=lambda rms: rms - layer.rms)
        if first >= last:
            return layer
        if (first, last) not in self._averages:
            self._averages[first, last] = self._average(first, last)
        return Initial(self._averages[first, last])

    def _average(self, first: int, last: int) -> float:
        chosen = sorted(self.order[first:last])  # a sum in another order would round otherwise
        squares = [self.sizes[k] * self.sizes[k] for k in chosen]
        return math.sqrt(sum(squares) / len(squares))


def exact(value: Initial, known: Iterable[float], samples: int) -> Initial:
    """Return the known standard deviation that agrees with a measurement within sampling error."""
    if value.constant is not None:
        return value
    error = min(4 / math.sqrt(2 * max(samples, 1)), 0.25)
    fits = [std for std in known if abs(value.rms - std) <= error * std]
    if fits:
        return Initial(min(fits, key=lambda std: abs(value.rms - std)))
    return value
