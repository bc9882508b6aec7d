"""Check that models can share one program: the same modules, tensor shapes and constants.

Values of parameters and buffers may differ. The forward pass of the first member is run for all
members. So everything else that it may read must be the same in all of them: numbers, lists,
tensors that are plain attributes, hooks of a plan; also what functions have captured, and what
objects and unregistered modules hold. A parameter that is also held elsewhere cannot be replaced
there: all members would use that of the first. Hooks on gradients stay on the models.

This finds the usual differences at once, with their names. What it cannot see, a proof finds
(`proof.py`).
"""

import hashlib
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from types import FunctionType, MethodType, ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from orderone.torch_compat import (
    NATIVE_MODULE,
    RNN_WEIGHT_LISTS,
    backward_hook_registry,
    backward_pre_hook_registry,
    forward_hook_registry,
    forward_pre_hook_registry,
    has_gradient_hooks,
)
from orderone.training.stacked.errors import NotStackable

SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
OF_TORCH = frozenset(vars(nn.Module()))  # registries; their contents are compared instead
DEEPEST = 3  # levels of nested attributes
NONE: frozenset[int] = frozenset()
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
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
        held = [*user_attributes(module), *_hooks(module)]
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
    return any(_holds_parameter(part, depth - 1, visited) for _, part in _parts(value))


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
            texts[f"{name}.{key}".lstrip(".")] = _as_text(value, names)
        for key, hook in _hooks(module):
            texts[f"{name}, {key}"] = _as_text(hook, names)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        texts[name] = f"{tuple(tensor.shape)}, {tensor.dtype}"
        if not tensor.requires_grad:
            texts[name] += ", not trained"
    return texts


def attribute_texts(model: nn.Module) -> dict[tuple[str, str], str]:
    """Return the attributes of all modules as text, by name of the module and of the attribute."""
    texts: dict[tuple[str, str], str] = {}
    names = {id(module): name or "the model" for name, module in model.named_modules()}
    for name, module in model.named_modules():
        for key, value in user_attributes(module):
            try:
                texts[name, key] = _as_text(value, names)
            except Exception:  # objects of the user, and tensors of a pass that has ended
                texts[name, key] = "unreadable"
    return texts


def text_of(value: object) -> str:
    """Return a text that is equal for equal values."""
    return _as_text(value, {})


def has_user_code(model: nn.Module) -> bool:
    """Return whether a forward pass runs code other than that of torch's modules and of plans."""
    for module in model.modules():
        if not type(module).__module__.startswith("torch.nn."):
            return True
        held = [hook for _, hook in _hooks(module)]
        for _, value in user_attributes(module):
            if callable(value):
                held.append(value)
        for value in held:
            home = getattr(value, "__module__", None) or type(value).__module__
            if not str(home).startswith(("torch.nn.", NATIVE_MODULE, "orderone.planning.")):
                return True
    return False


def _hooks(module: nn.Module) -> Iterator[tuple[str, object]]:
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


def user_attributes(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the attributes that torch itself did not create."""
    for key, value in vars(module).items():
        if key in OF_TORCH or isinstance(value, nn.Module):
            continue
        if isinstance(module, nn.RNNBase) and key in RNN_WEIGHT_LISTS:
            continue
        yield key, value


def _as_text(
    value: object, modules: Mapping[int, str], depth: int = DEEPEST, path: frozenset[int] = NONE
) -> str:
    """Return a text that is equal for equal values, whatever their identity.

    `modules` are the names of the model's modules, by identity.
    """
    if isinstance(value, SIMPLE):
        return repr(value)
    if id(value) in modules:
        return f"the module {modules[id(value)]}"
    if isinstance(value, RemovableHandle):
        # its number differs between modules; the hook itself is compared by `description`
        return "handle of a hook"
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{type(value).__name__} {tuple(value.shape)} {_digest(value)}"
    if isinstance(value, torch.Generator):
        return f"Generator {_digest(value.get_state())}"
    state = _generator_state(value)
    if state is not None:
        return f"{type(value).__name__} {hashlib.sha256(state.encode()).hexdigest()[:8]}"
    if id(value) in path:
        return "itself"
    inside = path | {id(value)}

    def part(x: object, deeper: int = 0) -> str:
        return _as_text(x, modules, depth - deeper, inside)

    if isinstance(value, Mapping):
        items = [f"{_as_text(key, modules, 0)}: {part(x)}" for key, x in value.items()]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (list, tuple, deque)):
        return "[" + ", ".join(part(x) for x in value) + "]"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(part(x) for x in value)) + "}"
    name = type(value).__qualname__
    if callable(value) and hasattr(value, "__qualname__"):
        name = f"{value.__module__}.{value.__qualname__}"
    parts: list[str] = []
    if depth:
        parts = [f"{key}={part(x, 1)}" for key, x in _parts(value)]
    if not parts and callable(value) and hasattr(value, "__qualname__"):
        return name
    if not parts and isinstance(value, count):
        return repr(value)  # the number that comes next
    return f"{name}({', '.join(parts)})"


def _generator_state(value: object) -> str | None:
    """Return the state of a random generator of Python or numpy as text."""
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr([np.asarray(part).tolist() for part in value.get_state(legacy=True)])
    return None


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield what a value holds: items, attributes, captured variables, bound arguments."""
    if isinstance(value, Mapping):
        yield from ((str(key), x) for key, x in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((str(place), x) for place, x in enumerate(value))
    elif isinstance(value, partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, MethodType):
        yield "self", value.__self__
        yield from _parts(value.__func__)
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # the variable has no value yet
                yield name, cell.cell_contents
        yield from ((f"default {i}", x) for i, x in enumerate(value.__defaults__ or ()))
        yield from (value.__kwdefaults__ or {}).items()
        yield from vars(value).items()
    elif isinstance(value, nn.Module):
        yield from value.named_parameters()
        yield from value.named_buffers()
        for name, module in value.named_modules():
            yield from ((f"{name}.{key}", x) for key, x in user_attributes(module))
    elif not isinstance(value, (type, ModuleType)):
        yield from getattr(value, "__dict__", {}).items()
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    yield name, getattr(value, name)


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
