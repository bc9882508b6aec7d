"""Check that models can share one program: the same modules, tensor shapes and constants.

Values of parameters and buffers may differ. The forward pass of the first member is run for all
members. So everything else that it may read must be the same in all of them: numbers, lists,
tensors that are plain attributes, hooks of a plan; also what functions have captured, and what
objects and unregistered modules hold. A parameter that is also held elsewhere cannot be replaced
there: all members would use that of the first. Hooks on gradients stay on the models.

This finds the usual differences at once, with their names. What it cannot see, a proof finds
(`proof.py`).
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from orderone.torch_compat import (
    NATIVE_MODULE,
    backward_hook_registry,
    backward_pre_hook_registry,
    forward_hook_registry,
    forward_pre_hook_registry,
    gradient_hooks,
    has_gradient_hooks,
)
from orderone.training.stacked.errors import NotStackable
from orderone.training.stacked.value_text import (
    DEEPEST,
    SIMPLE,
    parts_of,
    text_of,
    user_attributes,
)

RECORDERS = ("orderone.observe.", "orderone.measure.")  # modules with the hooks of a probe


def must_be_alike(models: Sequence[nn.Module]) -> None:
    """Raise NotStackable with the first difference between the models."""
    for model in models:
        _no_hooks_on_gradients(model)
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
        held = [*user_attributes(module), *hooks_of(module)]
        for key, value in held:
            if _holds_parameter(value, DEEPEST, {id(module) for module in model.modules()}):
                attribute = f"{name}.{key}".lstrip(".")
                raise NotStackable(
                    f"{attribute} holds a parameter outside the registered ones, which would be"
                    " shared by all members; use nn.ParameterList or a submodule, or train one"
                    " after another (stacked=False)",
                    "unregistered-parameter",
                )


def _holds_parameter(value: object, depth: int, visited: set[int]) -> bool:
    if isinstance(value, nn.Parameter):
        return value.requires_grad
    if id(value) in visited or isinstance(value, (*SIMPLE, Tensor, np.ndarray)):
        return False
    visited.add(id(value))
    if isinstance(value, nn.Module):
        return any(p.requires_grad for p in value.parameters())
    if depth == 0:
        return False
    return any(_holds_parameter(part, depth - 1, visited) for _, part in parts_of(value))


def _no_hooks_on_gradients(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if backward_hook_registry(module) or backward_pre_hook_registry(module):
            raise _hooked(f"{name or 'the model'} ({type(module).__name__})")
    for name, p in model.named_parameters():
        if has_gradient_hooks(p):
            raise _hooked(name)


def _hooked(name: str) -> NotStackable:
    return NotStackable(
        f"{name} has a hook on its gradient, which would not see the gradients of a stack; train"
        " one after another (stacked=False)",
        "gradient-hooks",
    )


def description(model: nn.Module) -> dict[str, str]:
    """Return everything that a forward pass may read, by name, as text."""
    texts: dict[str, str] = {}
    names = {id(module): name or "the model" for name, module in model.named_modules()}
    for name, module in model.named_modules():
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        mode = "training" if module.training else "evaluation"
        texts[name or "the model"] = f"{kind} in {mode} mode"
        for key, value in user_attributes(module):
            texts[f"{name}.{key}".lstrip(".")] = _readable(value, names)
        for key, hook in hooks_of(module):
            texts[f"{name}, {key}"] = _readable(hook, names)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        texts[name] = f"{tuple(tensor.shape)}, {tensor.dtype}"
        if not tensor.requires_grad:
            texts[name] += ", not trained"
    return texts


def names_of_modules(model: nn.Module) -> dict[int, str]:
    """Return the names of all modules by identity."""
    return {id(module): name or "the model" for name, module in model.named_modules()}


def attribute_texts(
    model: nn.Module, depth: int = DEEPEST, names: Mapping[int, str] | None = None
) -> dict[tuple[str, str], str]:
    """Return the attributes of all modules as text, by name of the module and of the attribute.

    `names` are those of modules by identity; by default, those of the model.
    """
    texts: dict[tuple[str, str], str] = {}
    names = names or names_of_modules(model)
    for name, module in model.named_modules():
        for key, value in user_attributes(module):
            texts[name, key] = _readable(value, names, depth)
    return texts


def hook_texts(
    model: nn.Module, depth: int = DEEPEST, names: Mapping[int, str] | None = None
) -> dict[str, str]:
    """Return all hooks as text, also those on gradients."""
    texts: dict[str, str] = {}
    names = names or names_of_modules(model)
    held: list[tuple[str, object]] = []
    for name, module in model.named_modules():
        held += [(f"{name}, {key}", hook) for key, hook in hooks_of(module)]
        registries = (backward_hook_registry(module), backward_pre_hook_registry(module))
        of_gradients = [hook for registry in registries for hook in registry.values()]
        held += [(f"{name}, backward hook {k}", hook) for k, hook in enumerate(of_gradients)]
    for name, p in model.named_parameters():
        hooks = enumerate(gradient_hooks(p))
        held += [(f"{name}, hook on its gradient {k}", hook) for k, hook in hooks]
    for place, hook in held:
        texts[place] = _readable(hook, names, depth)
    return texts


def _readable(value: object, names: Mapping[int, str], depth: int = DEEPEST) -> str:
    """Return a value as text; "unreadable" if that raises an error."""
    try:
        return text_of(value, names, depth)
    except Exception:  # objects of the user, and tensors of a pass that has ended
        return "unreadable"


def has_user_code(model: nn.Module) -> bool:
    """Return whether a forward pass runs code other than that of torch's modules and of plans."""
    for module in model.modules():
        if not type(module).__module__.startswith("torch.nn."):
            return True
        held = [hook for _, hook in hooks_of(module)]
        for _, value in user_attributes(module):
            if callable(value):
                held.append(value)
        for value in held:
            home = getattr(value, "__module__", None) or type(value).__module__
            if not str(home).startswith(("torch.nn.", NATIVE_MODULE, "orderone.planning.")):
                return True
    return False


def hooks_of(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the hooks, without those of a probe, which change nothing."""
    hooks = (
        *forward_hook_registry(module).values(),
        *forward_pre_hook_registry(module).values(),
    )
    others = [
        hook for hook in hooks if not str(getattr(hook, "__module__", "")).startswith(RECORDERS)
    ]
    for number, hook in enumerate(others):
        yield f"hook {number}", hook


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
        parts = [tensors[name].detach().to(device) for tensors in members]
        # members one after another: with `channels_last`, torch puts them side by side
        stacked[name] = torch.stack(parts).contiguous()
    return stacked
