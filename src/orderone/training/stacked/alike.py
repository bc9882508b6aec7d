"""Check that models can share one program: the same modules, tensor shapes and constants.

Values of parameters and buffers may differ. The forward pass of the first member is run for all
members. So everything else that it may read must be the same in all of them: numbers, lists,
tensors that are plain attributes, hooks of a plan. A parameter that is also in a plain list cannot
be replaced there: all members would use that of the first.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence

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
OF_TORCH = frozenset(vars(nn.Module()))  # registries; their contents are compared instead
DEEPEST = 3  # levels of nested attributes


def must_be_alike(models: Sequence[nn.Module]) -> None:
    """Raise NotStackable with the first difference between the models."""
    _no_unregistered_parameters(models[0])
    first = description(models[0])
    for number, model in enumerate(models[1:], start=1):
        other = description(model)
        for place in dict.fromkeys((*first, *other)):
            if first.get(place) != other.get(place):
                raise NotStackable(
                    f"{place}: expected the same in all members, got {first.get(place, 'nothing')}"
                    f" in the first and {other.get(place, 'nothing')} in member {number}; members"
                    " of one stack may differ only in the values of parameters and buffers and in"
                    " optimizer settings",
                    "members-differ",
                )


def _no_unregistered_parameters(model: nn.Module) -> None:
    for name, module in model.named_modules():
        for key, value in _user_attributes(module):
            if any(isinstance(leaf, nn.Parameter) for leaf in tree_leaves(value)):
                attribute = f"{name}.{key}".lstrip(".")
                raise NotStackable(
                    f"{attribute} is a plain attribute that holds a parameter, which would be"
                    " shared by all members; use nn.ParameterList, or train one after another"
                    " (stacked=False)",
                    "unregistered-parameter",
                )


def description(model: nn.Module) -> dict[str, str]:
    """Return everything that a forward pass may read, by name, as text."""
    texts: dict[str, str] = {}
    for name, module in model.named_modules():
        texts[name or "the model"] = f"{type(module).__module__}.{type(module).__qualname__}"
        for key, value in _user_attributes(module):
            texts[f"{name}.{key}".lstrip(".")] = _as_text(value)
        hooks = (
            *forward_hook_registry(module).values(),
            *forward_pre_hook_registry(module).values(),
        )
        for number, hook in enumerate(hooks):
            texts[f"{name}, hook {number}"] = _as_text(hook)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        texts[name] = f"{tuple(tensor.shape)}, {tensor.dtype}"
        if not tensor.requires_grad:
            texts[name] += ", not trained"
    return texts


def _user_attributes(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the attributes that torch itself did not create."""
    for key, value in vars(module).items():
        if key in OF_TORCH or isinstance(value, nn.Module):
            continue
        if isinstance(module, nn.RNNBase) and key in RNN_WEIGHT_LISTS:
            continue
        yield key, value


def _as_text(value: object, depth: int = DEEPEST) -> str:
    """Return a text that is equal for equal values, whatever their identity."""
    if isinstance(value, SIMPLE):
        return repr(value)
    if isinstance(value, RemovableHandle):
        # its number differs between modules; the hook itself is compared by `description`
        return "handle of a hook"
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{type(value).__name__} {tuple(value.shape)} {_digest(value)}"
    if isinstance(value, Mapping):
        items = [f"{_as_text(key, 0)}: {_as_text(x, depth)}" for key, x in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [_as_text(x, depth) for x in value]
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(items) + "]"
        return "{" + ", ".join(sorted(items)) + "}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    attributes: list[str] = []
    if depth and hasattr(value, "__dict__") and not isinstance(value, nn.Module):
        for key, x in vars(value).items():
            attributes.append(f"{key}={_as_text(x, depth - 1)}")
    return f"{type(value).__qualname__}({', '.join(attributes)})"


def _digest(values: Tensor | np.ndarray) -> str:
    """Return the data type and a short hash of the values."""
    if isinstance(values, Tensor):
        if values.is_meta:
            return f"{values.dtype}, on meta"
        values = values.detach().cpu()
        if values.dtype == torch.bfloat16:
            values = values.float()
        values = values.numpy()
    content = np.ascontiguousarray(values).tobytes()
    return f"{values.dtype} {hashlib.sha256(content).hexdigest()[:8]}"


def stack_tensors(
    models: Sequence[nn.Module], device: torch.device
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return parameters and buffers with a leading axis of members."""
    parameters = _stacked([dict(model.named_parameters()) for model in models], device)
    for name, p in models[0].named_parameters():
        parameters[name].requires_grad_(p.requires_grad)
    buffers = _stacked([dict(model.named_buffers()) for model in models], device)
    return parameters, buffers


def _stacked(members: Sequence[Mapping[str, Tensor]], device: torch.device) -> dict[str, Tensor]:
    stacked: dict[str, Tensor] = {}
    for name in members[0]:
        stacked[name] = torch.stack([tensors[name].detach().to(device) for tensors in members])
    return stacked
