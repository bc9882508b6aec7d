"""Adam with L2 decay, and AdamW, whose decay is decoupled, as in torch.optim."""

from typing import ClassVar

import torch
from torch import Tensor

from orderone.sweeping.stacked.updates.base import Settings, State, Update, in_type


class Adam(Update):
    numbers = ("lr", "weight_decay", "eps", "beta1", "beta2")
    shared = ("decoupled_weight_decay",)
    refused: ClassVar = {"maximize": False, "amsgrad": False}

    def state(self, p: Tensor) -> State:
        return {"first": torch.zeros_like(p), "second": torch.zeros_like(p)}

    def __call__(self, p: Tensor, g: Tensor, state: State, h: Settings) -> None:
        first, second, lr = state["first"], state["second"], h["lr"]
        if self.options["decoupled_weight_decay"]:
            p.mul_(in_type(1 - lr * h["weight_decay"], p))
        else:
            g = g + in_type(h["weight_decay"], p) * p
        first.lerp_(g, in_type(1 - h["beta1"], p).expand_as(g))
        second.mul_(in_type(h["beta2"], p)).add_(in_type(1 - h["beta2"], p) * g * g)
        size = lr / (1 - h["beta1"] ** h["t"])
        scale = (1 - h["beta2"] ** h["t"]).sqrt()
        p.sub_(in_type(size, p) * first / (second.sqrt() / in_type(scale, p) + in_type(h["eps"], p)))


class AdamW(Adam):
    pass
