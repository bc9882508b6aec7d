"""Find layers whose output is not proportional to their tensors.

The initial size of an output W x follows from those of W and x. A layer of a user's class may do
more: the router of Llama 4 is a Linear that returns sigmoids of its largest product. Twice its
tensors must give twice its output; otherwise nothing is predicted for the output.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from orderone.observe.batches import Batch, call_inputs
from orderone.observe.derivatives import without_gradients
from orderone.observe.hooks import main_tensor
from orderone.observe.inventory import modules_by_name
from orderone.observe.trace.recorder import call_with, undisturbed
from orderone.torch_compat import parameter_registry

ROUNDING = 1e-2  # relative, for outputs in half precision; a factor that is not 2 is much farther


def nonlinear_layers(model: nn.Module, batch: Batch) -> frozenset[str]:
    """Return the names of layers for which twice their tensors do not give twice their output.

    Only layers without children whose class is not torch's own are tried.
    """
    found: set[str] = set()
    args, kwargs = call_with(call_inputs(batch))
    handles = []

    def hook_for(name: str) -> Callable[..., None]:
        def after(
            layer: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], output: object
        ) -> None:
            try:
                doubles = _doubles(layer, args, kwargs)
            except Exception:  # it cannot be called twice on one input: nothing can be said
                return
            if not doubles:
                found.add(name)

        return after

    with undisturbed(model), without_gradients(model):
        try:
            for name, module in modules_by_name(model).items():
                if _is_own_layer(module):
                    hook = hook_for(name)
                    handles.append(module.register_forward_hook(hook, with_kwargs=True))
            if handles:
                model(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
    return frozenset(found)


def _is_own_layer(module: nn.Module) -> bool:
    """Return whether a layer has a matrix and a forward method of its own."""
    if type(module).forward.__module__.startswith("torch.nn.") or list(module.children()):
        return False
    tensors = [tensor for tensor in parameter_registry(module).values() if tensor is not None]
    return any(tensor.dim() > 1 for tensor in tensors)


def _doubles(layer: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Return whether twice the tensors of a layer give twice its output."""
    tensors = [tensor for tensor in parameter_registry(layer).values() if tensor is not None]
    before = main_tensor(layer.forward(*args, **kwargs))
    if before is None:
        return True
    before = before.double()
    values = [tensor.detach().clone() for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data.mul_(2)
        after = main_tensor(layer.forward(*args, **kwargs))
    finally:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.data.copy_(value)
    if after is None or after.shape != before.shape:
        return False
    error = torch.linalg.vector_norm(after.double() - 2 * before)
    return bool(error <= ROUNDING * torch.linalg.vector_norm(after.double()))
