"""Other kernels of torch for the same numbers, to measure how much rounding alone can do."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class _ProductsByBmm(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is functional.linear:
            return _linear(*args, **kwargs or {})
        return func(*args, **kwargs or {})


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows = input.reshape(1, -1, input.shape[-1])
    products = torch.bmm(rows, weight.mT.unsqueeze(0))
    if bias is not None:
        products = products + bias.to(products.dtype)
    return products.view(*input.shape[:-1], weight.shape[0])


@contextmanager
def products_by_bmm() -> Iterator[None]:
    """Compute linear layers of single networks by torch.bmm, with a separate addition of biases."""
    with _ProductsByBmm():
        yield
