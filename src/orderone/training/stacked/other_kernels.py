"""Other kernels for the same numbers: they show how far rounding alone brings two runs apart."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from orderone.training.stacked.constants import Arguments, NamedArguments, TorchFunction


class OtherKernels(TorchFunctionMode):
    """Mode that computes linear layers by batched products, and adds biases separately."""

    def __torch_function__(
        self,
        func: TorchFunction,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: NamedArguments | None = None,
    ) -> object:
        if func is functional.linear:
            return _linear(*args, **kwargs or {})
        return func(*args, **kwargs or {})


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if weight.dim() != 2 or input.dim() < 2:
        return functional.linear(input, weight, bias)
    rows = input.reshape(1, -1, input.shape[-1])
    products = torch.bmm(rows, weight.mT.unsqueeze(0))
    if bias is not None:
        products = products + bias.to(products.dtype)
    return products.view(*input.shape[:-1], weight.shape[0])
