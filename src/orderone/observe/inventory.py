"""The parameters of a model: each once, under one name, with every place that holds it.

Wrappers (torch.compile, DistributedDataParallel, FSDP, activation checkpointing) change names and
nothing else; they are looked through, so that a plan is the same before and after them.
"""

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter

from orderone.observe.layouts import Layout, layout_of
from orderone.torch_compat import parameter_registry

_WRAPPERS = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


@dataclass(frozen=True)
class Place:
    """One module that holds the tensor."""

    module: str
    attribute: str
    owner: str  # the module's class
    layout: Layout | None


@dataclass(frozen=True)
class Item:
    """A parameter. Tied parameters are one item with several places."""

    name: str
    shape: tuple[int, ...]
    places: tuple[Place, ...]
    tensor: Tensor = field(compare=False, repr=False)

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules that hold the tensor."""
        return tuple(place.module for place in self.places)


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile and DistributedDataParallel."""
    while True:
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def clean(name: str) -> str:
    return _WRAPPERS.sub("", name)


def inventory(model: nn.Module) -> dict[str, Item]:
    """Every parameter by its cleaned name, in the model's order."""
    tensors: dict[int, Tensor] = {}
    names: dict[int, str] = {}
    places: dict[int, list[Place]] = {}
    for path, module in unwrap(model).named_modules():
        path = clean(f"{path}.").removesuffix(".")
        for attribute, tensor in parameter_registry(module).items():
            if tensor is None:
                continue
            if isinstance(tensor, UninitializedParameter):
                raise ValueError(
                    f"model: {path}.{attribute} is lazy and has no shape yet; run one forward pass"
                    " first"
                )
            key = id(tensor)
            tensors[key] = tensor
            names.setdefault(key, f"{path}.{attribute}" if path else attribute)
            layout = layout_of(module, attribute, tensor.dim())
            places.setdefault(key, []).append(Place(path, attribute, type(module).__name__, layout))
    if not tensors:
        raise ValueError(
            f"model: expected a module with parameters, got {type(model).__name__}, which has none"
        )
    items: dict[str, Item] = {}
    for key, tensor in tensors.items():
        name = names[key]
        items[name] = Item(name, tuple(tensor.shape), tuple(places[key]), tensor)
    return items


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: item.shape for name, item in inventory(model).items()}


def modules_by_name(model: nn.Module) -> Mapping[str, nn.Module]:
    modules: dict[str, nn.Module] = {}
    for path, module in unwrap(model).named_modules():
        modules[clean(f"{path}.").removesuffix(".")] = module
    return modules


def read_patterns(value: Any, model: nn.Module, argument: str) -> tuple[str, ...]:
    """Return the patterns of tensors in `value`, one or several, each of which the model has."""
    if value is not None and not isinstance(value, Iterable):
        raise ValueError(
            f'{argument}: expected patterns of tensors such as ("*.bias",), got {value!r}'
        )
    patterns = (value,) if isinstance(value, str) else tuple(value or ())
    names = list(inventory(model))
    for pattern in patterns:
        if not isinstance(pattern, str) or not fnmatch.filter(names, pattern):
            raise ValueError(
                f"{argument}: no tensor is called {pattern!r}; the model has {names[0]}, ...,"
                f" {names[-1]}"
            )
    return patterns
