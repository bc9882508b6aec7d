"""RMSprop (Tieleman & Hinton 2012) with momentum and L2 decay, as torch.optim.RMSprop.

Each entry of the gradient is divided by a running size of it, so that updates scale with the width
as those of Adam.
"""

from typing import ClassVar

import torch
from torch import Tensor

from orderone.optimizers.record import Algorithm
from orderone.optimizers.update import Settings, State, Update
from orderone.rules.axes import Memory


class RMSpropUpdate(Update):
    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "momentum", "alpha", "eps")
    shared: ClassVar[tuple[str, ...]] = ("centered",)

    def state(self, p: Tensor) -> State:
        state = {"square": torch.zeros_like(p), "momentum": torch.zeros_like(p)}
        if self.options["centered"]:
            state["mean"] = torch.zeros_like(p)
        return state

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        return {
            "lr": h["lr"],
            "l2": h["weight_decay"],
            "momentum": h["momentum"],
            "alpha": h["alpha"],
            "fresh": 1 - h["alpha"],
            "eps": h["eps"],
        }

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        g = g + c["l2"] * p
        square = state["square"].mul_(c["alpha"]).add_(c["fresh"] * g * g)
        if self.options["centered"]:
            mean = state["mean"].lerp_(g, c["fresh"].expand_as(g))
            square = square - mean * mean
        # without momentum the buffer is the step itself
        buffer = state["momentum"].mul_(c["momentum"]).add_(g / (square.sqrt() + c["eps"]))
        p.sub_(c["lr"] * buffer)


RMSPROP = Algorithm(
    "rmsprop",
    law="adam",
    torch_class=torch.optim.RMSprop,
    stacked=RMSpropUpdate,
    lr=1e-2,
    weight_decay=0.0,
    eps=1e-8,
    memory=Memory.AVERAGES,
    averages="alpha",
)
