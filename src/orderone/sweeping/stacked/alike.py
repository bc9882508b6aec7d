"""Models that can be one program: the same modules, tensors and constants, whatever the values of the tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from orderone.sweeping.stacked.errors import NotStackable

SIMPLE = (bool, int, float, str, type(None), torch.dtype)


def must_be_alike(models: Sequence[nn.Module]) -> None:
    """NotStackable names the first difference."""
    first = _description(models[0])
    for number, model in enumerate(models[1:], start=1):
        other = _description(model)
        for place in [*first, *(place for place in other if place not in first)]:
            if first.get(place) != other.get(place):
                raise NotStackable(
                    f"{place}: expected the same in all members, got {_words(first, place)} in the first and "
                    f"{_words(other, place)} in member {number}; members of one stack may differ in the values of their "
                    "tensors and in their optimizers' settings"
                )


def _description(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        found[name or "the model"] = f"{type(module).__module__}.{type(module).__qualname__}"
        found |= {f"{name}.{key}".lstrip("."): value for key, value in vars(module).items() if _is_simple(key, value)}
        found |= {f"{name}, hook {n}": str(hook) for n, hook in enumerate(module._forward_hooks.values())
                  if type(hook).__module__.startswith("orderone")}  # fmt: skip
        found |= {f"{name}, input hook {n}": str(hook) for n, hook in enumerate(module._forward_pre_hooks.values())
                  if type(hook).__module__.startswith("orderone")}  # fmt: skip
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[name] = (tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad)
    return found


def _is_simple(key: str, value: Any) -> bool:
    return not key.startswith("_") and (
        isinstance(value, SIMPLE) or (isinstance(value, tuple) and all(isinstance(x, SIMPLE) for x in value))
    )


def _words(found: dict[str, Any], place: str) -> str:
    return repr(found[place]) if place in found else "nothing"


def stack_tensors(models: Sequence[nn.Module], device: torch.device) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers with a leading axis of members."""
    parameters = {
        name: _stack([dict(model.named_parameters())[name] for model in models], device).requires_grad_(p.requires_grad)
        for name, p in models[0].named_parameters()
    }
    buffers = {
        name: _stack([dict(model.named_buffers())[name] for model in models], device)
        for name, _ in models[0].named_buffers()
    }
    return parameters, buffers


def _stack(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.stack([tensor.detach().to(device) for tensor in tensors])
