"""Constants that a forward pass copies from the CPU to the GPU, cached there for CUDA graphs.

    self.limit.to(x.device), torch.tensor(0.5, device=x.device)

While a graph is captured, nothing can be copied from ordinary CPU memory. So the warm-up steps
before a capture leave a copy of every such constant on the GPU, by its value, and the captured step
copies from there.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from orderone.torch_compat import is_functorch_wrapped_tensor, tree_leaves
from orderone.training.stacked.capturing import is_recorded

TorchFunction: TypeAlias = Callable[..., object]
Arguments: TypeAlias = tuple[Any, ...]  # positional arguments of a call
NamedArguments: TypeAlias = Mapping[str, object]

LARGEST = 4096  # numbers in a constant; larger tensors are data
FACTORIES = (torch.tensor, torch.as_tensor)
MOVES = (Tensor.to, Tensor.cuda)


class Constants:
    """Copies of small constants on the GPU, by the call that made them."""

    def __init__(self) -> None:
        self._on_gpu: dict[str, Tensor] = {}

    def call(self, func: TorchFunction, args: Arguments, kwargs: NamedArguments) -> object:
        """Return `func(*args, **kwargs)`; during a capture, return the copy on the GPU."""
        source, *options = args
        value = source
        if isinstance(source, Tensor):
            value = source.tolist()
        key = (
            f"{func.__name__} {value!r} {options} {sorted(kwargs.items())}"
            f" {getattr(source, 'dtype', '')}"
        )
        capturing = is_recorded()
        if capturing and key in self._on_gpu:
            return self._on_gpu[key].clone()
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result.is_cuda and not capturing:
            self._on_gpu[key] = result.detach().clone()
        return result


class CachedConstants(TorchFunctionMode):
    """Mode for a single model, whose constants come from the cache during a capture."""

    def __init__(self) -> None:
        super().__init__()
        self.constants: Constants = Constants()

    def __torch_function__(
        self,
        func: TorchFunction,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: NamedArguments | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if is_constant(func, args):
            return self.constants.call(func, args, kwargs)
        return func(*args, **kwargs)


def is_constant(func: TorchFunction, args: Arguments) -> bool:
    """Return whether `func` makes or moves a small tensor with values from the CPU."""
    if func in FACTORIES:
        if not args:
            return False
        leaves = tree_leaves(args[0])
        return len(leaves) <= LARGEST and all(isinstance(x, (bool, int, float)) for x in leaves)
    if func not in MOVES:
        return False
    source = args[0]
    if is_functorch_wrapped_tensor(source) or source.requires_grad:
        return False
    return source.device.type == "cpu" and source.numel() <= LARGEST
