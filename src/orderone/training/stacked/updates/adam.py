"""Adam with L2 decay, and AdamW, whose decay is decoupled, as in torch.optim."""

from typing import ClassVar

import torch
from torch import Tensor

from orderone.training.stacked.updates.base import Settings, State, Update


class Adam(Update):
    numbers = ("lr", "weight_decay", "eps", "beta1", "beta2")
    shared = ("decoupled_weight_decay",)
    refused: ClassVar = {"maximize": False, "amsgrad": False}

    def state(self, p: Tensor) -> State:
        return {"first": torch.zeros_like(p), "second": torch.zeros_like(p)}

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        decoupled = bool(self.options["decoupled_weight_decay"])
        return {
            "keep": 1 - h["lr"] * h["weight_decay"] * decoupled,
            "l2": h["weight_decay"] * (not decoupled),
            "fresh1": 1 - h["beta1"],
            "beta2": h["beta2"],
            "fresh2": 1 - h["beta2"],
            "size": h["lr"] / (1 - h["beta1"] ** h["t"]),
            "root": (1 - h["beta2"] ** h["t"]).sqrt(),
            "eps": h["eps"],
        }

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        if not self.options["decoupled_weight_decay"]:
            g = g + c["l2"] * p
        first = state["first"].lerp_(g, c["fresh1"].expand_as(g))
        second = state["second"].mul_(c["beta2"]).add_(c["fresh2"] * g * g)
        p.mul_(c["keep"]).sub_(c["size"] * first / (second.sqrt() / c["root"] + c["eps"]))


class AdamW(Adam):
    pass
