"""How large tensors are at initialization: measured, and made exact where the measurement fits a
known initializer."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from orderone.planning.counterparts import stack_of


@dataclass(frozen=True)
class Initial:
    """Root mean square, and the value if all entries are the same: zeros stay zeros, ones are
    gains."""

    rms: float
    constant: float | None = None


def measure(tensor: Tensor) -> Initial:
    value = tensor.detach()
    if value.numel() == 0:
        return Initial(0.0, 0.0)
    if value.is_complex():
        value = torch.view_as_real(value)
    low = _number(value.min())
    high = _number(value.max())
    if low == high:
        return Initial(abs(low), low)
    return Initial(
        _number(torch.linalg.vector_norm(value, dtype=torch.float64)) / math.sqrt(value.numel())
    )


def _number(value: Tensor) -> float:
    full = getattr(value, "full_tensor", None)  # a DTensor's value is spread over processes
    return float(full() if full else value)


def pooled(values: Mapping[str, Initial]) -> dict[str, Initial]:
    """Layers of a stack that start alike are one sample: their common size is less noisy."""
    stacks: dict[str, list[Initial]] = {}
    for name, value in values.items():
        stacks.setdefault(stack_of(name), []).append(value)
    return {
        name: value if value.constant is not None else _pool(value, stacks[stack_of(name)])
        for name, value in values.items()
    }


def _pool(one: Initial, alike: list[Initial]) -> Initial:
    """Only what agrees to a few percent is pooled: an initialization may depend on the layer."""
    near = [x.rms for x in alike if x.constant is None and abs(x.rms - one.rms) <= 0.1 * one.rms]
    if near:
        return Initial(math.sqrt(sum(rms * rms for rms in near) / len(near)))
    return one


def exact(value: Initial, known: Iterable[float], samples: int) -> Initial:
    """The known standard deviation that the measurement fits within its sampling error."""
    error = min(4 / math.sqrt(2 * max(samples, 1)), 0.25)
    fits = [std for std in known if value.constant is None and abs(value.rms - std) <= error * std]
    if fits:
        return Initial(min(fits, key=lambda std: abs(value.rms - std)))
    return value
