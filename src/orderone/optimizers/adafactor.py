"""Adafactor (Shazeer & Stern 2018) as torch.optim.Adafactor: second moments by rows and columns,
steps relative to weights.

Second moments are factored over the last two axes of a tensor; a vector stores all of them.
"""

from typing import ClassVar

import torch
from torch import Tensor

from orderone.optimizers.record import Algorithm, Eps, TensorScale
from orderone.optimizers.update import Settings, State, Update, member_norm


class AdafactorUpdate(Update):
    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay", "beta2_decay", "d", "eps1", "eps2")
    elementwise: ClassVar[bool] = False

    def state(self, p: Tensor) -> State:
        if p.dim() <= 2:  # a vector for each member
            return {"second": torch.zeros_like(p)}
        return {"rows": torch.zeros_like(p[..., :1]), "columns": torch.zeros_like(p[..., :1, :])}

    def coefficients(self, h: Settings) -> dict[str, Tensor]:
        return {
            "keep": 1 - h["lr"] * h["weight_decay"],
            "rate": torch.minimum(h["lr"], h["t"] ** -0.5),
            "fresh": h["t"] ** h["beta2_decay"],
            "d": h["d"],
            "eps1": h["eps1"],
            "eps2": h["eps2"],
        }

    def __call__(self, p: Tensor, g: Tensor, state: State, c: Settings) -> None:
        root = p[0].numel() ** 0.5
        floor = c["eps1"]
        size = c["rate"] * torch.maximum(c["eps2"], member_norm(p) / root)
        second = self._second_moment(g, state, c["fresh"], floor)
        update = g * torch.maximum(second, floor * floor).rsqrt()
        clip = (member_norm(update) / (root * c["d"])).clamp(min=1.0)
        p.mul_(c["keep"]).sub_(update * (size / clip))

    def _second_moment(self, g: Tensor, state: State, fresh: Tensor, floor: Tensor) -> Tensor:
        if "second" in state:
            return state["second"].lerp_(g * g, fresh.expand_as(g))
        rows = state["rows"]
        columns = state["columns"]
        rows.lerp_((g * g).mean(-1, keepdim=True), fresh.expand_as(rows))
        columns.lerp_((g * g).mean(-2, keepdim=True), fresh.expand_as(columns))
        return rows @ columns / torch.maximum(rows.mean(-2, keepdim=True), floor)


def _scaled_eps(eps: tuple[float | None, float], scale: TensorScale) -> Eps:
    """Scale the two floors: of the gradients, and of the size of the weights."""
    floor, size = eps
    if floor is None and scale.gradient != 1:
        floor = torch.finfo(scale.dtype).eps  # torch's value for None
    if floor is not None:
        floor *= scale.gradient
    return (floor, size * scale.std)


ADAFACTOR = Algorithm(
    "adafactor",
    law="adafactor",
    torch_class=torch.optim.Adafactor,
    stacked=AdafactorUpdate,
    lr=1e-2,
    weight_decay=0.0,
    eps=(None, 1e-3),
    scaled_eps=_scaled_eps,
    takes_complex=False,
)
