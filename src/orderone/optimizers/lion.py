"""Lion (Chen et al. 2023, arXiv:2302.06675): the sign of an interpolated momentum.

torch.optim has no Lion; this is one.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from orderone.optimizers.record import Algorithm
from orderone.optimizers.update import Settings, State, Update
from orderone.rules.axes import Memory


class Lion(Optimizer):
    """Lion with decoupled weight decay."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group["lr"], group["weight_decay"], *group["betas"])
        return loss

    def _update(
        self, p: Tensor, lr: float, weight_decay: float, beta1: float, beta2: float
    ) -> None:
        assert p.grad is not None
        if not self.state[p]:
            self.state[p]["momentum"] = torch.zeros_like(p)
        momentum = self.state[p]["momentum"]
        p.mul_(1 - lr * weight_decay)
        p.add_(momentum.lerp(p.grad, 1 - beta1).sign_(), alpha=-lr)
        momentum.lerp_(p.grad, 1 - beta2)


class LionUpdate(Update):
    """Update of Lion for stacked members."""

    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "beta1", "beta2")
    refused: ClassVar[Mapping[str, object]] = {}

    def state(self, p: Tensor) -> State:
        return {"momentum": torch.zeros_like(p)}

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        return {
            "lr": h["lr"],
            "keep": 1 - h["lr"] * h["weight_decay"],
            "fresh1": 1 - h["beta1"],
            "fresh2": 1 - h["beta2"],
        }

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        direction = state["momentum"].lerp(g, c["fresh1"].expand_as(g)).sign()
        p.mul_(c["keep"]).sub_(c["lr"] * direction)
        state["momentum"].lerp_(g, c["fresh2"].expand_as(g))


LION = Algorithm(
    "lion",
    law="sign",
    torch_class=Lion,
    stacked=LionUpdate,
    lr=1e-4,
    weight_decay=0.0,
    takes_complex=False,
    memory=Memory.MOMENTUM,
)
