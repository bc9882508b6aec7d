"""Models that can be one program: the same modules, tensors and constants, whatever the values of
parameters and buffers.

The forward pass of the first member is run for all. So whatever it may read besides parameters and
buffers has to be the same in all of them: numbers, lists, tensors that are plain attributes, hooks
of a plan. A parameter that is also held in a list would stay that of the first member there.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from orderone.torch_compat import (
    RNN_WEIGHT_LISTS,
    forward_hook_registry,
    forward_pre_hook_registry,
    tree_leaves,
)
from orderone.training.stacked.errors import NotStackable

SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
OF_TORCH = frozenset(vars(nn.Module()))  # its registries, which are compared by what they hold
DEEPEST = 3  # attributes of attributes of attributes


def must_be_alike(models: Sequence[nn.Module]) -> None:
    """NotStackable names the first difference."""
    _no_parameters_beside(models[0])
    first = description(models[0])
    for number, model in enumerate(models[1:], start=1):
        other = description(model)
        for place in [*first, *(place for place in other if place not in first)]:
            if first.get(place) != other.get(place):
                raise NotStackable(
                    f"{place}: expected the same in all members, got {first.get(place, 'nothing')}"
                    f" in the first and {other.get(place, 'nothing')} in member {number}; members"
                    " of one stack may differ in the values of their parameters and buffers and in"
                    " their optimizers' settings"
                )


def _no_parameters_beside(model: nn.Module) -> None:
    for name, module in model.named_modules():
        for key, value in _own(module):
            if any(isinstance(leaf, nn.Parameter) for leaf in tree_leaves(value)):
                raise NotStackable(
                    f"{name}.{key}".lstrip(".")
                    + " holds a parameter beside the module's own, where members cannot have "
                    "theirs; use nn.ParameterList, or train one after another (stacked=False)"
                )


def description(model: nn.Module) -> dict[str, str]:
    """All that a forward pass may read, by name, as text."""
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        found[name or "the model"] = f"{type(module).__module__}.{type(module).__qualname__}"
        found |= {f"{name}.{key}".lstrip("."): _told(value) for key, value in _own(module)}
        for n, hook in enumerate(
            (*forward_hook_registry(module).values(), *forward_pre_hook_registry(module).values())
        ):
            found[f"{name}, hook {n}"] = _told(hook)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found[name] = (
            f"{tuple(tensor.shape)},"
            f" {tensor.dtype}{'' if tensor.requires_grad else ', not trained'}"
        )
    return found


def _own(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Attributes that are not torch's."""
    known = (*OF_TORCH, *RNN_WEIGHT_LISTS) if isinstance(module, nn.RNNBase) else OF_TORCH
    for key, value in vars(module).items():
        if key not in known and not isinstance(value, nn.Module):
            yield key, value


def _told(value: Any, depth: int = DEEPEST) -> str:
    if isinstance(value, SIMPLE):
        return repr(value)
    if isinstance(value, RemovableHandle):
        # numbered through the process; the hook itself is looked at where it hangs
        return "handle of a hook"
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{type(value).__name__} {tuple(value.shape)} {_digest(value)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_told(k, 0)}: {_told(x, depth)}" for k, x in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_told(x, depth) for x in value)}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(_told(x, depth) for x in value))}}}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if depth and hasattr(value, "__dict__") and not isinstance(value, nn.Module):
        inside = vars(value)
    else:
        inside = {}
    return f"{type(value).__qualname__}({', '.join(f'{k}={_told(x, depth - 1)}' for k, x in inside.items())})"


def _digest(values: Any) -> str:
    """Of the content, a few letters."""
    if isinstance(values, Tensor):
        if values.is_meta:
            return f"{values.dtype}, on meta"
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return (
        f"{values.dtype} {hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:8]}"
    )


def stack_tensors(
    models: Sequence[nn.Module], device: torch.device
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Parameters and buffers with a leading axis of members."""
    parameters = {
        name: (
            _stack(
                [dict(model.named_parameters())[name] for model in models], device
            ).requires_grad_(p.requires_grad)
        )
        for name, p in models[0].named_parameters()
    }
    buffers = {
        name: _stack([dict(model.named_buffers())[name] for model in models], device)
        for name, _ in models[0].named_buffers()
    }
    return parameters, buffers


def _stack(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.stack([tensor.detach().to(device) for tensor in tensors])
