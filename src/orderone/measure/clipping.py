"""How much smaller the gradients are that an optimizer gets, beside those of the loss alone.

Hooks of tensors and of optimizers may clip gradients. A copy of the model has no such hooks: the
gradients of the copy, for the same batch and the same random numbers, are those of the loss.
"""

import copy
import math
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from orderone.observe.batches import Batch, Loss, loss_of, repeatable
from orderone.observe.inventory import tensors_of
from orderone.observe.precision import Precision
from orderone.observe.quantities import Quantity
from orderone.observe.step_recorder import Row


def sizes_without_hooks(
    model: nn.Module, batch: Batch, loss: Loss | None, precision: Precision
) -> dict[str, float]:
    """Return the RMS of each gradient on a copy of the model; nothing if there can be no copy."""
    if precision.scales_loss:
        return {}
    try:
        alone = copy.deepcopy(model)
    except Exception:  # some modules refuse to be copied
        return {}
    with repeatable(alone):
        with precision.passes(alone):
            value = loss_of(alone, batch, loss)
        value.backward()
    sizes: dict[str, float] = {}
    for name, tensor in tensors_of(alone).items():
        if tensor.grad is not None and tensor.grad.layout == torch.strided:
            norm = torch.linalg.vector_norm(tensor.grad)
            sizes[name] = float(norm) / math.sqrt(max(1, tensor.numel()))
    return sizes


def clipped(rows: Iterable[Row], sizes: Mapping[str, float]) -> dict[str, float]:
    """Return the recorded gradient of the first step divided by that of the copy, by tensor."""
    fractions: dict[str, float] = {}
    for step, name, quantity, moments in rows:
        if step == 0 and quantity == Quantity.GRADIENT and sizes.get(name) and moments.rms:
            fractions[name] = moments.rms / sizes[name]
    return fractions
