"""NAdam (Dozat 2016), Adam with Nesterov momentum on a schedule, as torch.optim.NAdam.

    mu_t     = beta1 (1 - 0.96^(t momentum_decay) / 2)
    step     = lr (1 - mu_t) / (1 - mu_1 ... mu_t) g  +  lr mu_t+1 / (1 - mu_1 ... mu_t+1) first
    p        = p - step / (sqrt(second / (1 - beta2^t)) + eps)

Each entry of the gradient is divided by a running size of it, so that updates scale with the width
as those of Adam; with `decoupled_weight_decay`, as those of AdamW.
"""

from typing import ClassVar

import torch
from torch import Tensor

from orderone.optimizers.record import Algorithm
from orderone.optimizers.update import Settings, State, Update


class NAdamUpdate(Update):
    numbers: ClassVar[tuple[str, ...]] = (
        "lr",
        "weight_decay",
        "eps",
        "beta1",
        "beta2",
        "momentum_decay",
    )
    shared: ClassVar[tuple[str, ...]] = ("decoupled_weight_decay",)

    def state(self, p: Tensor) -> State:
        # torch stores this number in its default precision, whatever the precision of the tensor
        if torch.get_default_dtype() == torch.float64:
            dtype = torch.float64
        else:
            dtype = torch.float32
        one_per_member = (len(p), *[1] * (p.dim() - 1))
        return {
            "first": torch.zeros_like(p),
            "second": torch.zeros_like(p),
            "mu_product": torch.ones(one_per_member, dtype=dtype, device=p.device),
        }

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        decoupled = bool(self.options["decoupled_weight_decay"])
        return {
            "lr": h["lr"],
            "keep": 1 - h["lr"] * h["weight_decay"] * decoupled,
            "l2": h["weight_decay"] * (not decoupled),
            "fresh1": 1 - h["beta1"],
            "beta2": h["beta2"],
            "fresh2": 1 - h["beta2"],
            "correction": 1 - h["beta2"] ** h["t"],
            "mu": _momentum(h, h["t"]),
            "mu_next": _momentum(h, h["t"] + 1),
            "eps": h["eps"],
        }

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        if not self.options["decoupled_weight_decay"]:
            g = g + c["l2"] * p
        first = state["first"].lerp_(g, c["fresh1"].expand_as(g))
        second = state["second"].mul_(c["beta2"]).add_(c["fresh2"] * g * g)
        product = state["mu_product"].mul_(c["mu"]).to(p.dtype)
        of_gradient = c["lr"] * (1 - c["mu"]) / (1 - product)
        of_momentum = c["lr"] * c["mu_next"] / (1 - product * c["mu_next"])
        size = (second / c["correction"]).sqrt() + c["eps"]
        p.mul_(c["keep"]).sub_((of_gradient * g + of_momentum * first) / size)


def _momentum(h: Settings, t: Tensor) -> Tensor:
    """Return mu_t."""
    return h["beta1"] * (1 - 0.5 * 0.96 ** (t * h["momentum_decay"]))


NADAM = Algorithm(
    "nadam",
    law="adam",
    torch_class=torch.optim.NAdam,
    stacked=NAdamUpdate,
    lr=2e-3,
    weight_decay=0.0,
    eps=1e-8,
    other_decay="adamw",
)
