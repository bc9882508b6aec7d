"""Adafactor (Shazeer & Stern 2018) as torch.optim.Adafactor: second moments by rows and columns, steps relative to weights.

A vector keeps all of its second moments; of anything with two or more axes, the last two are factored.
"""

import torch
from torch import Tensor

from orderone.sweeping.stacked.updates.base import Settings, State, Update, in_type, member_norm


class Adafactor(Update):
    numbers = ("lr", "weight_decay", "beta2_decay", "d", "eps1", "eps2")
    elementwise = False

    def state(self, p: Tensor) -> State:
        if p.dim() <= 2:  # a vector of each member
            return {"second": torch.zeros_like(p)}
        return {"rows": torch.zeros_like(p[..., :1]), "columns": torch.zeros_like(p[..., :1, :])}

    def __call__(self, p: Tensor, g: Tensor, state: State, h: Settings) -> None:
        lr, count = h["lr"], p[0].numel()
        size = torch.maximum(in_type(h["eps2"], p), member_norm(p) / count**0.5)
        size = size * in_type(torch.minimum(lr, h["t"] ** -0.5), p)
        p.mul_(in_type(1 - lr * h["weight_decay"], p))
        floor = in_type(h["eps1"], p)
        second = self._second_moment(g, state, in_type(h["t"] ** h["beta2_decay"], p), floor)
        update = g * torch.maximum(second, floor * floor).rsqrt()
        clip = (member_norm(update) / (count**0.5 * in_type(h["d"], p))).clamp(min=1.0)
        p.sub_(update * (size / clip))

    def _second_moment(self, g: Tensor, state: State, fresh: Tensor, floor: Tensor) -> Tensor:
        if "second" in state:
            return state["second"].lerp_(g * g, fresh.expand_as(g))
        rows, columns = state["rows"], state["columns"]
        rows.lerp_((g * g).mean(-1, keepdim=True), fresh.expand_as(rows))
        columns.lerp_((g * g).mean(-2, keepdim=True), fresh.expand_as(columns))
        return rows @ columns / torch.maximum(rows.mean(-2, keepdim=True), floor)
