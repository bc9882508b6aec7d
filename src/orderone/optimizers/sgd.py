"""SGD with momentum and L2 decay, as torch.optim.SGD."""

from typing import ClassVar

import torch
from torch import Tensor

from orderone.optimizers.record import Algorithm
from orderone.optimizers.update import Settings, State, Update
from orderone.rules.axes import Memory


class SGDUpdate(Update):
    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "momentum", "dampening")
    shared: ClassVar[tuple[str, ...]] = ("nesterov",)

    def state(self, p: Tensor) -> State:
        return {"momentum": torch.zeros_like(p)}

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        # in torch, the buffer starts with the whole gradient, and dampening needs momentum
        fresh = torch.where((h["t"] == 1) | (h["momentum"] == 0), 1.0, 1 - h["dampening"])
        return {"lr": h["lr"], "l2": h["weight_decay"], "momentum": h["momentum"], "fresh": fresh}

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        g = g + c["l2"] * p
        buffer = state["momentum"].mul_(c["momentum"]).add_(c["fresh"] * g)
        if self.options["nesterov"]:
            step = g + c["momentum"] * buffer
        else:
            step = buffer
        p.sub_(c["lr"] * step)


SGD = Algorithm(
    "sgd",
    law="sgd",
    torch_class=torch.optim.SGD,
    stacked=SGDUpdate,
    lr=1e-3,
    weight_decay=0.0,
    fused=True,
    takes_sparse=True,
    memory=Memory.MOMENTUM,
)
