"""Lion (Chen et al. 2023, arXiv:2302.06675): the sign of an interpolated momentum. torch.optim has
none."""

from collections.abc import Callable

import torch
from torch.optim import Optimizer


class Lion(Optimizer):
    def __init__(
        self,
        params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
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
        self, p: torch.Tensor, lr: float, weight_decay: float, beta1: float, beta2: float
    ) -> None:
        assert p.grad is not None
        if not self.state[p]:
            self.state[p]["momentum"] = torch.zeros_like(p)
        momentum = self.state[p]["momentum"]
        p.mul_(1 - lr * weight_decay)
        p.add_(momentum.lerp(p.grad, 1 - beta1).sign_(), alpha=-lr)
        momentum.lerp_(p.grad, 1 - beta2)
