"""rows @ weight^T for stacked matrices, with a weight gradient in the memory order of the weight.

Autograd's rule for bmm returns that gradient transposed, which would slow down everything that
reads it. Under autocast, products are in its precision, as for one network. Callers are outside
vmap (`vmap_overrides.py`).
"""

from typing import Any

import torch
from torch import Tensor


def rows_by_weights(rows: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """Return (K, N, in) times the transpose of (K, out, in) plus (K, out), as (K, N, out)."""
    device = rows.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        rows = _autocast(rows, dtype)
        weights = _autocast(weights, dtype)
        if bias is not None:
            bias = _autocast(bias, dtype)
    return _Product.apply(rows, weights, bias)


def _autocast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast like autocast, which does not cast double precision."""
    if x.dtype == torch.float64:
        return x
    return x.to(dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, rows: Tensor, weights: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(rows, weights)
        if bias is None:
            return torch.bmm(rows, weights.mT)
        return torch.baddbmm(bias.unsqueeze(1), rows, weights.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        rows, weights = ctx.saved_tensors
        of_rows = None
        of_weights = None
        of_bias = None
        with torch.autocast(grad.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                of_rows = torch.bmm(grad, weights)
            if ctx.needs_input_grad[1]:
                of_weights = torch.bmm(grad.mT, rows)
            if ctx.needs_input_grad[2]:
                of_bias = grad.sum(1)
        return of_rows, of_weights, of_bias
