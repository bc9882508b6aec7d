"""Text of a value that a model holds: equal for equal values, whatever their identity.

Models are compared by such texts, and so are the states of one model before and after a pass.
"""

import hashlib
import random
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import FunctionType, MappingProxyType, MethodType, ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from orderone.torch_compat import RNN_WEIGHT_LISTS
from orderone.training.stacked.inner_state import LRU_CACHE, inner_state
from orderone.training.tensor_content import content_of

SIMPLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
OF_TORCH = frozenset(vars(nn.Module()))  # registries; their contents are compared instead
DEEPEST = 3  # levels of nested attributes
NONE: frozenset[int] = frozenset()
NO_MODULES: Mapping[int, str] = MappingProxyType({})
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)


def user_attributes(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Yield the attributes that torch itself did not create."""
    for key, value in vars(module).items():
        if key in OF_TORCH or isinstance(value, nn.Module):
            continue
        if isinstance(module, nn.RNNBase) and key in RNN_WEIGHT_LISTS:
            continue
        yield key, value


def text_of(
    value: object,
    modules: Mapping[int, str] = NO_MODULES,
    depth: int = DEEPEST,
    path: frozenset[int] = NONE,
) -> str:
    """Return a text that is equal for equal values, whatever their identity.

    `modules` are the names of the model's modules, by identity.
    """
    if isinstance(value, SIMPLE):
        return repr(value)
    if id(value) in modules:
        return f"the module {modules[id(value)]}"
    if isinstance(value, RemovableHandle):
        # its number differs between modules; the hook itself is compared by `alike.description`
        return "handle of a hook"
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        # its bytes are addresses
        return f"ndarray {value.shape} {text_of(value.tolist(), modules, depth, path)}"
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
    if isinstance(value, Mapping):
        return _mapping_text(value, modules, depth, inside)
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        members = [text_of(x, modules, depth, inside) for x in value]
        if isinstance(value, (set, frozenset)):
            return "{" + ", ".join(sorted(members)) + "}"
        return "[" + ", ".join(members) + "]"
    return _object_text(value, modules, depth, inside)


def _mapping_text(
    value: Mapping[object, object], modules: Mapping[int, str], depth: int, inside: frozenset[int]
) -> str:
    items: list[str] = []
    for key, x in value.items():
        items.append(f"{text_of(key, modules, 0)}: {text_of(x, modules, depth, inside)}")
    return "{" + ", ".join(items) + "}"


def _object_text(
    value: object, modules: Mapping[int, str], depth: int, inside: frozenset[int]
) -> str:
    """Return the text of a function, or of an object with attributes."""
    parts: list[str] = []
    if depth:
        for key, x in parts_of(value):
            parts.append(f"{key}={text_of(x, modules, depth - 1, inside)}")
    if not parts:
        for key, x in inner_state(value):
            parts.append(f"{key}={text_of(x, modules, depth - min(depth, 1), inside)}")
    if callable(value) and hasattr(value, "__qualname__"):
        name = f"{value.__module__}.{value.__qualname__}"
        return f"{name}({', '.join(parts)})" if parts else name
    return f"{type(value).__qualname__}({', '.join(parts)})"


def _generator_state(value: object) -> str | None:
    """Return the state of a random generator of Python or numpy as text."""
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr([np.asarray(part).tolist() for part in value.get_state(legacy=True)])
    return None


def parts_of(value: object) -> Iterator[tuple[str, object]]:
    """Yield what a value holds: items, attributes, captured variables, bound arguments."""
    if isinstance(value, Mapping):
        yield from ((str(key), x) for key, x in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((str(place), x) for place, x in enumerate(value))
    elif isinstance(value, partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, MethodType):
        yield "self", value.__self__
        yield from parts_of(value.__func__)
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # the variable has no value yet
                yield name, cell.cell_contents
        yield from ((f"default {i}", x) for i, x in enumerate(value.__defaults__ or ()))
        yield from (value.__kwdefaults__ or {}).items()
        yield from vars(value).items()
    elif isinstance(value, LRU_CACHE):
        yield "entries", value.cache_info().currsize  # a hit changes nothing
        yield "function", value.__wrapped__
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
        content = content_of(values)
    else:
        content = np.ascontiguousarray(values).tobytes()
    return f"{values.dtype} {hashlib.sha256(content).hexdigest()[:8]}"
