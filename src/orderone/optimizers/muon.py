"""Muon (Jordan et al. 2024) as torch.optim.Muon: momentum, made nearly orthogonal by Newton-Schulz
iterations.

It takes the hidden matrices; AdamW takes the rest.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from orderone.core.errors import InputError
from orderone.optimizers.record import Algorithm, Shape, TensorScale
from orderone.optimizers.update import Options, Settings, State, Update
from orderone.rules.axes import Memory

REST = "adamw"  # optimizer of all other tensors


class MuonUpdate(Update):
    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "momentum", "eps")
    shared: ClassVar[tuple[str, ...]] = ("nesterov", "ns_coefficients", "ns_steps")
    refused: ClassVar[Mapping[str, object]] = {"adjust_lr_fn": None}
    elementwise: ClassVar[bool] = False
    inner_precision: ClassVar[torch.dtype | None] = torch.bfloat16  # of Newton-Schulz, as in torch

    def state(self, p: Tensor) -> State:
        return {"momentum": torch.zeros_like(p)}

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        return {
            "lr": h["lr"],
            "keep": 1 - h["lr"] * h["weight_decay"],
            "momentum": h["momentum"],
            "fresh": 1 - h["momentum"],
            "eps": h["eps"],
        }

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        buffer = state["momentum"].lerp_(g, c["fresh"].expand_as(g))
        if self.options["nesterov"]:
            direction = g.lerp(buffer, c["momentum"].expand_as(g))
        else:
            direction = buffer
        tall = math.sqrt(max(1.0, p.shape[-2] / p.shape[-1]))
        p.mul_(c["keep"]).sub_(tall * c["lr"] * self._orthogonal(direction, c["eps"]).to(p.dtype))

    def _orthogonal(self, g: Tensor, eps: Tensor) -> Tensor:
        a, b, c = self.options["ns_coefficients"]
        is_tall = g.shape[-2] > g.shape[-1]
        x = g.bfloat16()  # as torch does
        if is_tall:
            x = x.mT
        norm = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True)
        x = x / torch.maximum(norm, eps.to(x.dtype))
        for _ in range(self.options["ns_steps"]):
            gram = torch.bmm(x, x.mT)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        if is_tall:
            return x.mT
        return x


def _takes(is_hidden: bool, shape: Shape) -> bool:
    return is_hidden and len(shape) == 2


def _scaled_eps(eps: float, scale: TensorScale) -> float:
    """Scale an eps that is compared with the norm of the gradient."""
    entries = math.prod(scale.shape) / math.prod(scale.base_shape)
    return eps * scale.gradient * math.sqrt(entries)


def _rate_factor(shape: Shape) -> float:
    """Return the factor that torch.optim.Muon applies to lr: sqrt(max(1, rows / columns))."""
    rows, columns = shape
    return max(1.0, rows / columns) ** 0.5


def _check_options(options: Options) -> None:
    if options.get("adjust_lr_fn") not in (None, "original"):
        raise InputError(
            f"adjust_lr_fn: expected 'original', got {options['adjust_lr_fn']!r}, which makes"
            " updates as large as those of AdamW; the learning rates of a plan are for updates of"
            " spectral norm lr",
            argument="adjust_lr_fn",
        )


MUON = Algorithm(
    "muon",
    law="muon",
    torch_class=torch.optim.Muon,
    stacked=MuonUpdate,
    lr=1e-3,
    weight_decay=0.1,
    eps=1e-7,
    takes=_takes,
    rest=REST,
    scaled_eps=_scaled_eps,
    rate_factor=_rate_factor,
    check_options=_check_options,
    memory=Memory.MOMENTUM,
)
