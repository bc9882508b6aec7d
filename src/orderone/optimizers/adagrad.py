"""Adagrad (Duchi et al. 2011) with L2 decay, as torch.optim.Adagrad.

Each entry of the gradient is divided by the root of the sum of its squares so far. Updates shrink
like 1 / sqrt(t), at every width alike, and scale with the width as those of Adam.

With `initial_accumulator_value` > 0 the sum starts at this value. While the squares of gradients
add up to less, updates are proportional to the gradient, as those of SGD; later they are
normalized, as those of Adam. Gradients of hidden matrices shrink with the width, so wide models
get there later than narrow ones. No learning rate is right at all widths and steps, so a plan
refuses this option.
"""

from typing import ClassVar

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.optimizers.record import Algorithm
from orderone.optimizers.update import Options, Settings, State, Update


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


def _check_options(options: Options) -> None:
    start = options.get("initial_accumulator_value")
    if start:
        raise InputError(
            f"initial_accumulator_value: expected 0, got {start!r}; updates follow the law of SGD"
            " until the squares of gradients add up to this value, and the law of Adam after that;"
            " wide models have smaller gradients and get there later. To limit small denominators,"
            " use eps, which a plan scales with the width",
            argument="initial_accumulator_value",
        )


ADAGRAD = Algorithm(
    "adagrad",
    law="adam",
    torch_class=torch.optim.Adagrad,
    stacked=AdagradUpdate,
    lr=1e-2,
    weight_decay=0.0,
    eps=1e-10,
    check_options=_check_options,
    takes_sparse=True,
)
