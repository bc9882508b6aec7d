"""rows @ weight^T for stacked matrices, with the gradient of the weight in the weight's own order.

Autograd's rule for bmm gives that gradient transposed, and every later reader of it would pay for
the order. In autocast, products are in its precision, as for one network. The caller is outside
vmap (`vmap_overrides.py`).
"""

from typing import Any

import torch
from torch import Tensor


def rows_by_weights(rows: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply (K, N, in) by (K, out, in) and add (K, out): (K, N, out)."""
    device = rows.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        rows = _autocast(rows, dtype)
        weights = _autocast(weights, dtype)
        if bias is not None:
            bias = _autocast(bias, dtype)
    return _Product.apply(rows, weights, bias)


def _autocast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast as autocast does, which leaves double precision alone."""
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
