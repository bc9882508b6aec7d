"""RMSprop with momentum and L2 decay, as torch.optim.RMSprop."""

import torch
from torch import Tensor

from orderone.training.stacked.updates.base import Settings, State, Update


class RMSprop(Update):
    numbers = ("lr", "weight_decay", "momentum", "alpha", "eps")
    shared = ("centered",)

    def state(self, p: Tensor) -> State:
        if self.options["centered"]:
            names = ("square", "momentum", "mean")
        else:
            names = ("square", "momentum")
        return {name: torch.zeros_like(p) for name in names}

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        found = {name: h[name] for name in ("lr", "momentum", "alpha", "eps")}
        return found | {"l2": h["weight_decay"], "fresh": 1 - h["alpha"]}

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        g = g + c["l2"] * p
        square = state["square"].mul_(c["alpha"]).add_(c["fresh"] * g * g)
        if self.options["centered"]:
            mean = state["mean"].lerp_(g, c["fresh"].expand_as(g))
            square = square - mean * mean
        # without momentum the buffer is the step itself
        buffer = state["momentum"].mul_(c["momentum"]).add_(g / (square.sqrt() + c["eps"]))
        p.sub_(c["lr"] * buffer)
