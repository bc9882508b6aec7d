"""Weight decay, measured by itself: what a step does to weights whose gradient is zero.

In ordinary steps the decay hides behind the update, which is far larger; but without a gradient
nothing else is left. The step is taken on a copy of model and optimizer, in double precision.

Adam adds its penalty to the gradient and normalizes the sum, so that no weight shrinks by a
fraction of itself. What counts there is the penalty beside the gradient: if it grows with the size,
it is all that large models learn.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim import Optimizer

from orderone.measure.optimizer_copy import twin
from orderone.observe.moments import Ledger, Moments

SAME_DIRECTION = (
    1e-2  # decay shrinks a weight along itself; Adam's penalty, which is normalized, does not
)


@dataclass(frozen=True)
class Decay:
    fractions: dict[str, Moments] = field(
        default_factory=dict
    )  # by which one step shrinks a tensor
    penalties: dict[str, float] = field(
        default_factory=dict
    )  # RMS of what is added to a gradient that is normalized


def decay_of(model: nn.Module, optimizer: Optimizer) -> Decay:
    """Of each tensor; nothing for tensors that do not shrink."""
    if not any(group.get("weight_decay") for group in optimizer.param_groups):
        return Decay()
    tensors, steps = twin(model, optimizer)
    for p in tensors.values():
        p.data = p.data.double()  # in single precision, rounding hides a decay of 1e-6
    before = {name: p.detach().clone() for name, p in tensors.items()}
    for p in tensors.values():
        p.grad = torch.zeros_like(p)
    steps.step()
    fractions = _fractions(before, tensors)
    coefficients = {
        id(p): float(group.get("weight_decay", 0.0))
        for group in steps.param_groups
        for p in group["params"]
    }
    moved = [
        name
        for name, p in tensors.items()
        if name not in fractions and not torch.equal(p, before[name])
    ]
    return Decay(
        fractions, {name: coefficients[id(tensors[name])] * _rms(before[name]) for name in moved}
    )


def _rms(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x)) / math.sqrt(x.numel())


@torch.no_grad()
def _fractions(
    before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]
) -> dict[str, Moments]:
    ledger = Ledger()
    names = []
    for name, old in before.items():
        change = old - after[name]
        size = torch.linalg.vector_norm(old)
        moved = torch.linalg.vector_norm(change)
        if moved > 0 and size > 0:
            fraction = moved / size
            if torch.linalg.vector_norm(change - fraction * old) <= SAME_DIRECTION * moved:
                ledger.add(fraction.reshape(1))
                names.append(name)
    return dict(zip(names, ledger.fetch(), strict=True))
