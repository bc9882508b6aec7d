"""Lion, as `orderone.planning.lion`."""

from typing import ClassVar

import torch
from torch import Tensor

from orderone.sweeping.stacked.updates.base import Settings, State, Update, in_type


class Lion(Update):
    numbers = ("lr", "weight_decay", "beta1", "beta2")
    refused: ClassVar = {}

    def state(self, p: Tensor) -> State:
        return {"momentum": torch.zeros_like(p)}

    def __call__(self, p: Tensor, g: Tensor, state: State, h: Settings) -> None:
        momentum = state["momentum"]
        p.mul_(in_type(1 - h["lr"] * h["weight_decay"], p))
        p.sub_(in_type(h["lr"], p) * momentum.lerp(g, in_type(1 - h["beta1"], p).expand_as(g)).sign())
        momentum.lerp_(g, in_type(1 - h["beta2"], p).expand_as(g))
