"""Adam with L2 decay, and AdamW, whose decay is decoupled, as in torch.optim."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from orderone.optimizers.fused_adam import FusedAdam
from orderone.optimizers.record import Algorithm
from orderone.optimizers.update import Settings, State, Update
from orderone.rules.axes import Memory


class AdamUpdate(Update):
    """Update of Adam; the option `decoupled_weight_decay` makes it AdamW."""

    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "eps", "beta1", "beta2")
    shared: ClassVar[tuple[str, ...]] = ("decoupled_weight_decay",)
    refused: ClassVar[Mapping[str, object]] = {"maximize": False, "amsgrad": False}

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

    def cpu_kernel(
        self,
        parameters: Mapping[str, Tensor],
        states: Mapping[str, State],
        settings: Mapping[str, Settings],
    ) -> FusedAdam:
        decoupled = bool(self.options["decoupled_weight_decay"])
        return FusedAdam(decoupled, parameters, states, settings)


class AdamWUpdate(AdamUpdate):
    """Update of AdamW: that of Adam with the option `decoupled_weight_decay`."""


ADAM = Algorithm(
    "adam",
    law="adam",
    torch_class=torch.optim.Adam,
    stacked=AdamUpdate,
    lr=1e-3,
    weight_decay=0.0,
    eps=1e-8,
    fused=True,
    other_decay="adamw",
    memory=Memory.AVERAGES,
    averages="betas",
)
ADAMW = Algorithm(
    "adamw",
    law="adamw",
    torch_class=torch.optim.AdamW,
    stacked=AdamWUpdate,
    lr=1e-3,
    weight_decay=1e-2,
    eps=1e-8,
    fused=True,
    other_decay="adam",
    memory=Memory.AVERAGES,
    averages="betas",
)
