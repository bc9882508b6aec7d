"""Muon (Jordan et al. 2024) as torch.optim.Muon: momentum, made nearly orthogonal by Newton-Schulz iterations."""

from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor

from orderone.sweeping.stacked.updates.base import Settings, State, Update, in_type


class Muon(Update):
    numbers = ("lr", "weight_decay", "momentum", "eps")
    shared = ("nesterov", "ns_coefficients", "ns_steps")
    refused: ClassVar = {"adjust_lr_fn": None}
    elementwise = False

    def state(self, p: Tensor) -> State:
        return {"momentum": torch.zeros_like(p)}

    def __call__(self, p: Tensor, g: Tensor, state: State, h: Settings) -> None:
        momentum, buffer = in_type(h["momentum"], p), state["momentum"]
        buffer.lerp_(g, (1 - momentum).expand_as(g))
        direction = g.lerp(buffer, momentum.expand_as(g)) if self.options["nesterov"] else buffer
        p.mul_(in_type(1 - h["lr"] * h["weight_decay"], p))
        tall = sqrt(max(1.0, p.shape[-2] / p.shape[-1]))
        p.sub_(in_type(tall * h["lr"], p) * self._orthogonal(direction, h["eps"]).to(p.dtype))

    def _orthogonal(self, g: Tensor, eps: Tensor) -> Tensor:
        a, b, c = self.options["ns_coefficients"]
        x = g.bfloat16()  # as torch does
        x = x.mT if g.shape[-2] > g.shape[-1] else x
        x = x / torch.maximum(torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True), eps.to(x.dtype))
        for _ in range(self.options["ns_steps"]):
            gram = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        return x.mT if g.shape[-2] > g.shape[-1] else x
