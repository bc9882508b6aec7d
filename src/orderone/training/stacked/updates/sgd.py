"""SGD with momentum and L2 decay, as torch.optim.SGD."""

import torch
from torch import Tensor

from orderone.training.stacked.updates.base import Settings, State, Update


class SGD(Update):
    numbers = ("lr", "weight_decay", "momentum", "dampening")
    shared = ("nesterov",)

    def state(self, p: Tensor) -> State:
        return {"momentum": torch.zeros_like(p)}

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        # torch starts the buffer with the whole gradient, and knows no dampening without momentum
        fresh = torch.where((h["t"] == 1) | (h["momentum"] == 0), 1.0, 1 - h["dampening"])
        return {"lr": h["lr"], "l2": h["weight_decay"], "momentum": h["momentum"], "fresh": fresh}

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        g = g + c["l2"] * p
        buffer = state["momentum"].mul_(c["momentum"]).add_(c["fresh"] * g)
        p.sub_(c["lr"] * (g + c["momentum"] * buffer if self.options["nesterov"] else buffer))
