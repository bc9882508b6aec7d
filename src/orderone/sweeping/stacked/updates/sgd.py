"""SGD with momentum and L2 decay, as torch.optim.SGD."""

import torch
from torch import Tensor

from orderone.sweeping.stacked.updates.base import Settings, State, Update, in_type


class SGD(Update):
    numbers = ("lr", "weight_decay", "momentum", "dampening")
    shared = ("nesterov",)

    def state(self, p: Tensor) -> State:
        return {"momentum": torch.zeros_like(p)}

    def __call__(self, p: Tensor, g: Tensor, state: State, h: Settings) -> None:
        momentum, buffer = h["momentum"], state["momentum"]
        # torch starts the buffer with the whole gradient, and knows no dampening without momentum
        fresh = torch.where((h["t"] == 1) | (momentum == 0), 1.0, 1 - h["dampening"])
        g = g + in_type(h["weight_decay"], p) * p
        buffer.mul_(in_type(momentum, p)).add_(in_type(fresh, p) * g)
        step = g + in_type(momentum, p) * buffer if self.options["nesterov"] else buffer
        p.sub_(in_type(h["lr"], p) * step)
