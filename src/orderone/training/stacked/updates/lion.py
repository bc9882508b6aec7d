"""Lion, as `orderone.optimizers.lion`."""

from typing import ClassVar

import torch
from torch import Tensor

from orderone.training.stacked.updates.base import Settings, State, Update


class Lion(Update):
    numbers = ("lr", "weight_decay", "beta1", "beta2")
    refused: ClassVar = {}

    def state(self, p: Tensor) -> State:
        return {"momentum": torch.zeros_like(p)}

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        keep = 1 - h["lr"] * h["weight_decay"]
        return {"lr": h["lr"], "keep": keep, "fresh1": 1 - h["beta1"], "fresh2": 1 - h["beta2"]}

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        direction = state["momentum"].lerp(g, c["fresh1"].expand_as(g)).sign()
        p.mul_(c["keep"]).sub_(c["lr"] * direction)
        state["momentum"].lerp_(g, c["fresh2"].expand_as(g))
