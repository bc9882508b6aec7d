"""Other kernels for the same numbers: they show how far rounding alone brings two runs apart."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from orderone.observe.recomputed import without_recomputation
from orderone.training.stacked.constants import Arguments, NamedArguments, TorchFunction

CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


class OtherKernels(TorchFunctionMode):
    """Mode that computes linear layers by batched products, and convolutions by grouped ones.

    Biases are added separately. Activations are not recomputed in the backward pass
    (torch.utils.checkpoint), in which torch would leave this mode.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recomputation: AbstractContextManager[None] = nullcontext()

    def __enter__(self) -> "OtherKernels":
        self._recomputation = without_recomputation()
        self._recomputation.__enter__()
        return super().__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._recomputation.__exit__(kind, error, trace)

    def __torch_function__(
        self,
        func: TorchFunction,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: NamedArguments | None = None,
    ) -> object:
        if func is functional.linear:
            return _linear(*args, **kwargs or {})
        if func in CONVOLUTIONS:
            return _convolution(func, *args, **kwargs or {})
        return func(*args, **kwargs or {})


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if weight.dim() != 2 or input.dim() < 2:
        return functional.linear(input, weight, bias)
    rows = input.reshape(1, -1, input.shape[-1])
    products = torch.bmm(rows, weight.mT.unsqueeze(0))
    if bias is not None:
        products = products + bias.to(products.dtype)
    return products.view(*input.shape[:-1], weight.shape[0])


def _convolution(
    func: TorchFunction,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Return the first half of a convolution with twice the channels and groups."""
    channels = input.dim() - weight.dim() + 1  # the axis; without a batch, it is the first
    inputs = torch.cat([input, input], channels)
    weights = torch.cat([weight, weight])
    both = func(inputs, weights, None, stride, padding, dilation, 2 * groups)
    assert isinstance(both, Tensor)
    output = both.narrow(channels, 0, len(weight))
    if bias is None:
        return output
    return output + bias.to(output.dtype).view(-1, *[1] * (weight.dim() - 2))
