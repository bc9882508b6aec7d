"""Calls of single blocks of a model, with the arguments that the model passes to them.

Two measurements of a plan call a block on its own: the routing of experts (`routing`) and the
response of adapters (`adapter_response`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import Tensor, nn

from orderone.observe.derivatives import without_gradients
from orderone.observe.inventory import modules_by_name
from orderone.observe.trace import call_with, undisturbed
from orderone.planning.options import ExampleBatch

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def calls_of_blocks(
    model: nn.Module, inputs: ExampleBatch, blocks: Sequence[str]
) -> dict[str, Call]:
    """Return the arguments of the first call of each block, by its name.

    Blocks that the example batch does not reach are left out.
    """
    modules = modules_by_name(model)
    calls: dict[str, Call] = {}
    handles: list[Any] = []
    for block in dict.fromkeys(blocks):

        def record(
            _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], block: str = block
        ) -> None:
            calls.setdefault(block, (args, kwargs))

        handles.append(modules[block].register_forward_pre_hook(record, with_kwargs=True))
    args, kwargs = call_with(inputs)
    try:
        with undisturbed(model), without_gradients(model):
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def first_tensor(value: object) -> Tensor:
    """Return the first floating-point tensor of a block's output."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        parts = value.values()
    else:
        parts = value
    for part in parts:  # pyright: ignore[reportGeneralTypeIssues]
        if isinstance(part, Tensor) and part.is_floating_point():
            return part
    raise TypeError(f"the block returns {type(value).__name__}, without a tensor")


@contextmanager
def restored(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore values and `requires_grad` of tensors afterwards."""
    before = [(tensor, tensor.detach().clone(), tensor.requires_grad) for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value, requires_grad in before:
            tensor.requires_grad_(requires_grad)
            tensor.data.copy_(value)
