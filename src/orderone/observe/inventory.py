"""The parameters of a model: each once, under one name, with every place that holds it, and the
axes that its modules sum over.

Wrappers (torch.compile, DistributedDataParallel, FSDP, activation checkpointing) change names and
nothing else. They are ignored, so that a plan is the same before and after wrapping.

The layout of a tensor says which of its axes are summed over. Shapes cannot distinguish a Linear
from Hugging Face's transposed Conv1D, nor a readout from an embedding; the module that owns the
tensor can. Layouts are a registry that users can extend:

    matrix    y_out = sum_in W[out, in] x[in]     Linear, ConvNd (kernel axes are neither fan-in nor
                                                  fan-out), attention and RNN weights
    lookup    y_out = W[token, out]               Embedding: the token axis selects a row, nothing
                                                  is summed
    vector    added or multiplied per channel     biases, gains
    table     added, or used as tokens            positions, latents
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import UninitializedParameter

from orderone.core.errors import InputError
from orderone.torch_compat import parameter_registry

_WRAPPERS = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


# --- layouts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Use of a tensor: its kind (see the head of this file), and its axes of fan-in and fan-out.

    The fan-in of a lookup is the axis that an index selects from. Axes of kernels and experts are
    neither fan-in nor fan-out.
    """

    kind: str
    fan_in: tuple[int, ...] = ()
    fan_out: tuple[int, ...] = ()


def matrix(into: int, out: int) -> Layout:
    """Return the layout of a matrix with these axes of fan-in and fan-out."""
    return Layout("matrix", (into,), (out,))


def lookup(pick: int = 0, out: int = 1) -> Layout:
    """Return the layout of a table of embeddings: an index selects along axis `pick`."""
    return Layout("lookup", (pick,), (out,))


VECTOR = Layout("vector")
TABLE = Layout("table")
_REGISTRY: dict[str, dict[str, Layout]] = {}


def register(module: type[nn.Module] | str, **layouts: Layout) -> None:
    """Declare how a module type uses its tensors.

    Example: `register(MyLinear, weight=matrix(into=0, out=1))`.

    The full name of the type, as a string, works too and needs no import. Names of tensors may
    contain wildcards: pass a dict with **. Subclasses inherit; the last registration wins.
    """
    if isinstance(module, type):
        module = _full_name(module)
    if not isinstance(module, str):
        message = f"module: expected a type of module or its full name, got {module!r:.60}"
        raise InputError(message, "wrong-type", argument="module")
    _REGISTRY.setdefault(module, {}).update(layouts)


def layout_of(module: nn.Module, attribute: str, dimensions: int) -> Layout | None:
    """Return the layout of `module.attribute`; None for a tensor of several axes whose module type
    is not registered."""
    if (
        getattr(module, "transposed", False)
        and getattr(module, "groups", 1) == getattr(module, "in_channels", 0) > 1
    ):
        return VECTOR  # one filter per channel
    for pattern, layout in _registered(type(module)):
        if fnmatch.fnmatch(attribute, pattern):
            return layout
    if dimensions <= 1:
        return VECTOR
    return None


def _registered(cls: type) -> Iterator[tuple[str, Layout]]:
    for ancestor in cls.__mro__:
        yield from reversed(_REGISTRY.get(_full_name(ancestor), {}).items())


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_OUT_IN = matrix(into=1, out=0)
_IN_OUT = matrix(into=0, out=1)
register(nn.Linear, weight=_OUT_IN)
register("transformers.pytorch_utils.Conv1D", weight=_IN_OUT)
register(nn.Bilinear, weight=Layout("matrix", fan_in=(1, 2), fan_out=(0,)))
register(nn.Embedding, weight=lookup())
register(nn.EmbeddingBag, weight=lookup())
register(
    nn.MultiheadAttention, **{"*_proj_weight": _OUT_IN, "in_proj_weight": _OUT_IN, "bias_*": VECTOR}
)
register(nn.RNNBase, **{"weight_*": _OUT_IN})
register(nn.RNNCellBase, **{"weight_*": _OUT_IN})
for _conv in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    register(_conv, weight=_OUT_IN)
for _conv in (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
    register(_conv, weight=_IN_OUT)
for _norm in (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm):  # whatever their normalized_shape
    register(_norm, weight=VECTOR, bias=VECTOR)


# --- parameters -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A module that holds the tensor, and the attribute under which it does."""

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

    @property
    def other_names(self) -> tuple[str, ...]:
        """Names of a tied tensor in the modules that hold it too."""
        names = [f"{place.module}.{place.attribute}".lstrip(".") for place in self.places]
        return tuple(name for name in dict.fromkeys(names) if name != self.name)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile and DistributedDataParallel."""
    *_, inner = wrappers(model)
    return inner


def wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a model, what is inside of it, and so on to the model without wrappers."""
    yield model
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        yield from wrappers(model.module)
    elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        yield from wrappers(inner)


def clean(name: str) -> str:
    """Return the name of a parameter or module without the prefixes of wrappers."""
    return _WRAPPERS.sub("", name)


def inventory(model: nn.Module) -> dict[str, Item]:
    """Return every parameter by its name without wrappers, in the model's order."""
    tensors: dict[int, Tensor] = {}
    names: dict[int, str] = {}
    places: dict[int, list[Place]] = {}
    for path, module in unwrap(model).named_modules():
        path = clean(f"{path}.").removesuffix(".")
        for attribute, tensor in parameter_registry(module).items():
            if tensor is None:
                continue
            if isinstance(tensor, UninitializedParameter):
                raise _lazy(f"{path}.{attribute}")
            key = id(tensor)
            tensors[key] = tensor
            names.setdefault(key, f"{path}.{attribute}" if path else attribute)
            layout = layout_of(module, attribute, tensor.dim())
            places.setdefault(key, []).append(Place(path, attribute, type(module).__name__, layout))
    if not tensors:
        raise _without_parameters(model)
    items: dict[str, Item] = {}
    for key, tensor in tensors.items():
        name = names[key]
        items[name] = Item(name, tuple(tensor.shape), tuple(places[key]), tensor)
    return items


def _lazy(name: str) -> InputError:
    return InputError(
        f"model: {name} is lazy and has no shape yet; run one forward pass first", argument="model"
    )


def _without_parameters(model: nn.Module) -> InputError:
    return InputError(
        f"model: expected a module with parameters, got {type(model).__name__}, which has none",
        argument="model",
    )


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter by its name without wrappers, in the model's order.

    This is `inventory` without places: for callers that need no layouts, many times faster.
    """
    tensors: dict[str, Tensor] = {}
    counted: set[int] = set()
    for path, module in unwrap(model).named_modules():
        for attribute, tensor in parameter_registry(module).items():
            if tensor is None or id(tensor) in counted:
                continue
            name = clean(f"{path}.{attribute}" if path else attribute)
            if isinstance(tensor, UninitializedParameter):
                raise _lazy(name)
            counted.add(id(tensor))
            tensors[name] = tensor
    if not tensors:
        raise _without_parameters(model)
    return tensors


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by its name without wrappers."""
    return {name: tuple(tensor.shape) for name, tensor in tensors_of(model).items()}


def modules_by_name(model: nn.Module) -> Mapping[str, nn.Module]:
    """Return every module by its name without wrappers."""
    modules: dict[str, nn.Module] = {}
    for path, module in unwrap(model).named_modules():
        modules[clean(f"{path}.").removesuffix(".")] = module
    return modules


def read_patterns(value: Any, model: nn.Module, argument: str) -> tuple[str, ...]:
    """Return the patterns in `value`, one or several. Each must match a tensor of the model."""
    if value is not None and not isinstance(value, Iterable):
        raise InputError(
            f'{argument}: expected patterns of tensor names such as ("*.bias",), got {value!r}',
            argument=argument,
        )
    if isinstance(value, str):
        patterns = (value,)
    else:
        patterns = tuple(value or ())
    names = list(inventory(model))
    for pattern in patterns:
        if not isinstance(pattern, str) or not fnmatch.filter(names, pattern):
            message = (
                f"{argument}: no tensor matches {pattern!r}; the model has {names[0]}, ...,"
                f" {names[-1]}"
            )
            raise InputError(message, "unknown-name", argument=argument)
    return patterns
