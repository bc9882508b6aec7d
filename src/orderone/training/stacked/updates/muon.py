"""Muon (Jordan et al. 2024) as torch.optim.Muon: momentum, made nearly orthogonal by Newton-Schulz
iterations."""

from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from orderone.training.stacked.updates.base import Settings, State, Update


class Muon(Update):
    numbers = ("lr", "weight_decay", "momentum", "eps")
    shared = ("nesterov", "ns_coefficients", "ns_steps")
    refused: ClassVar = {"adjust_lr_fn": None}
    elementwise = False

    def state(self, p: Tensor) -> State:
        return {"momentum": torch.zeros_like(p)}

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        keep = 1 - h["lr"] * h["weight_decay"]
        fresh = 1 - h["momentum"]
        return {
            "lr": h["lr"],
            "keep": keep,
            "momentum": h["momentum"],
            "fresh": fresh,
            "eps": h["eps"],
        }

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        buffer = state["momentum"].lerp_(g, c["fresh"].expand_as(g))
        if self.options["nesterov"]:
            direction = g.lerp(buffer, c["momentum"].expand_as(g))
        else:
            direction = buffer
        tall = sqrt(max(1.0, p.shape[-2] / p.shape[-1]))
        p.mul_(c["keep"]).sub_(tall * c["lr"] * self._orthogonal(direction, c["eps"]).to(p.dtype))

    def _orthogonal(self, g: Tensor, eps: Tensor) -> Tensor:
        a, b, c = self.options["ns_coefficients"]
        x = g.bfloat16()  # as torch does
        x = x.mT if g.shape[-2] > g.shape[-1] else x
        x = x / torch.maximum(
            torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True), eps.to(x.dtype)
        )
        for _ in range(self.options["ns_steps"]):
            gram = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.mT if g.shape[-2] > g.shape[-1] else x
