"""Copies of a model and its optimizer, to see what steps do without taking them."""

import copy

from torch import Tensor, nn
from torch.optim import Optimizer

from orderone.observe.inventory import inventory


def twin(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], Optimizer]:
    """What the copy trains, by name, and an optimizer that moves it: a warm-up starts at rate
    zero."""
    own, steps = copy.deepcopy((model, optimizer))
    for group in steps.param_groups:
        group["lr"] = group["lr"] or group.get("initial_lr", 0.0)
    return {
        name: item.tensor for name, item in inventory(own).items() if item.tensor.requires_grad
    }, steps
