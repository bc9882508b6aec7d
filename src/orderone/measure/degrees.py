"""How the steps of an optimizer follow the gradient: by which power of its size.

    RMS(dW of steps on c g) = c^degree RMS(dW of steps on g)

0 where steps are normalized (Adam, Lion, Muon), 1 where they are proportional to the gradient
(SGD). S0 (12) has a law for each, so that the degree tells by which one to judge an optimizer that
nobody knows, and from which step on: the first five steps of RAdam are those of SGD with momentum.
Measured on copies, with gradients of size one, beside which eps is nothing, and without weight
decay.
"""

import math

import torch
from torch import nn
from torch.optim import Optimizer

from orderone.measure.optimizer_copy import twin

SCALE = 4.0  # a power of two: nothing is rounded
NEAR = 0.25  # degrees that differ by less are the same
Degrees = dict[str, list[float]]  # by tensor, step by step


def degrees(model: nn.Module, optimizer: Optimizer, steps: int) -> Degrees:
    """Of every tensor that the optimizer moves in every step."""
    plain, scaled = (_sizes(model, optimizer, steps, scale) for scale in (1.0, SCALE))
    return {
        name: [
            math.log(two / one) / math.log(SCALE)
            for one, two in zip(sizes, scaled[name], strict=True)
        ]
        for name, sizes in plain.items()
        if all(x > 0 and math.isfinite(x) for x in (*sizes, *scaled[name]))
    }


def _sizes(
    model: nn.Module, optimizer: Optimizer, steps: int, scale: float
) -> dict[str, list[float]]:
    """Norms of updates, step by step, on the same random gradients for every `scale`."""
    tensors, stepper = twin(model, optimizer)
    for group in stepper.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = 0.0
    found: dict[str, list[float]] = {name: [] for name in tensors}
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        before = {name: p.detach().clone() for name, p in tensors.items()}
        for p in tensors.values():
            p.grad = scale * torch.randn(p.shape, generator=generator).to(p)
        stepper.step()
        for name, p in tensors.items():
            found[name].append(
                float(torch.linalg.vector_norm((p.detach() - before[name]).double()))
            )
    return found


def settles(found: Degrees, degree: float) -> int | None:
    """The first step from which on all tensors follow the gradient by this power; None: never, or
    nothing is known."""
    lasting = range(max((len(own) for own in found.values()), default=0))
    off = [
        step for step in lasting if any(abs(own[step] - degree) > NEAR for own in found.values())
    ]
    first = max(off, default=-1) + 1
    return first if first < len(lasting) else None
