"""Adagrad (Duchi et al. 2011) with L2 decay, as torch.optim.Adagrad.

Each entry of the gradient is divided by the root of the sum of its squares so far. Updates shrink
like 1 / sqrt(t), at every width alike, and scale with the width as those of Adam. With
`initial_accumulator_value` > 0 the sum does not start at the scale of the gradient, and this
scaling is broken.
"""

from typing import ClassVar

import torch
from torch import Tensor

from orderone.optimizers.record import Algorithm
from orderone.optimizers.update import Settings, State, Update


class AdagradUpdate(Update):
    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "lr_decay", "eps")
    shared: ClassVar[tuple[str, ...]] = ("initial_accumulator_value",)

    def state(self, p: Tensor) -> State:
        return {"sum": torch.full_like(p, self.options["initial_accumulator_value"])}

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        return {
            "rate": h["lr"] / (1 + (h["t"] - 1) * h["lr_decay"]),
            "l2": h["weight_decay"],
            "eps": h["eps"],
        }

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        g = g + c["l2"] * p
        squares = state["sum"].add_(g * g)
        p.sub_(c["rate"] * g / (squares.sqrt() + c["eps"]))


ADAGRAD = Algorithm(
    "adagrad",
    law="adam",
    torch_class=torch.optim.Adagrad,
    stacked=AdagradUpdate,
    lr=1e-2,
    weight_decay=0.0,
    eps=1e-10,
)
