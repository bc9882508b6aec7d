"""Initial sizes of all tensors of a base, also on the meta device.

A base on the meta device has no values, so a copy with memory is initialized first: by torch's
`reset_parameters`, then by the `_init_weights` of Hugging Face and nanoGPT. For a large base, only
one layer of every stack is copied, one at a time. A constructor that initializes in other ways
cannot be imitated: if a target with memory differs from what its modules' code would draw, the base
needs memory too.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.observe.inventory import Item, clean, inventory, unwrap
from orderone.planning.counterparts import stack_of
from orderone.planning.initial import Initial, exact, measure, pooled
from orderone.planning.roles.vocabulary import TORCH_DEFAULT_INIT
from orderone.seeding import seeded
from orderone.torch_compat import CHILD_MODULES, RESET_PARAMETERS, parameter_registry

SMALL = 50_000_000  # models up to this number of parameters are allocated
SAMPLE = 1 << 24  # entries that are enough to measure a tensor


def initial_sizes(base: nn.Module, target: nn.Module | None = None) -> dict[str, Initial]:
    """Return the initial size of every parameter of the base, also on the meta device."""
    items = inventory(base)
    sizes: dict[str, Initial] = {}
    missing: dict[str, Item] = {}
    for name, item in items.items():
        if item.tensor.is_meta:
            missing[name] = item
        else:
            sizes[name] = measure(item.tensor)
    if target is not None:
        _must_be_fresh(sizes, target)
    if missing:
        constants = {} if target is None else _constants_of(target)
        drawn = drawn_by_code(unwrap(base), missing)
        for name in missing:
            sizes[name] = _drawn_or_constant(name, drawn, constants)
    result: dict[str, Initial] = {}
    entries = {name: item.tensor.numel() for name, item in items.items()}
    for name, value in pooled(sizes, entries).items():
        result[name] = exact(value, _known(name, items, base), items[name].tensor.numel())
    return result


def _known(name: str, items: Mapping[str, Item], base: nn.Module) -> list[float]:
    """Return standard deviations of common initializers: of torch for matrices and their biases,
    and of Hugging Face."""
    known = [1.0]
    place = items[name].places[0]
    weight = items.get(f"{place.module}.weight".lstrip("."))
    if place.owner in TORCH_DEFAULT_INIT and weight is not None and weight.tensor.numel():
        # uniform within fan_in^-1/2
        known.append((3 * weight.tensor.numel() / weight.shape[0]) ** -0.5)
    config = getattr(unwrap(base), "config", None)
    configured = getattr(config, "initializer_range", None)
    if isinstance(configured, float):
        known.append(configured)
    return known


def _must_be_fresh(base: Mapping[str, Initial], target: nn.Module) -> None:
    """Raise an InputError if a tensor is constant in the target and varies in the base."""
    items = _real_items(target)
    for name, value in base.items():
        if value.constant is not None or name not in items:
            continue
        tensor = items[name].tensor
        if tensor.dim() <= 1 and measure(tensor).constant is not None:
            message = (
                f"base: the entries of {name} differ, but in a new model they are all equal. So"
                " this base has been trained, and its initial sizes are lost; build a new base"
            )
            raise InputError(message, "base-was-trained", argument="base")


def _real_items(model: nn.Module) -> dict[str, Item]:
    """Return the parameters that are not on the meta device."""
    return {name: item for name, item in inventory(model).items() if not item.tensor.is_meta}


def _drawn_or_constant(
    name: str, drawn: Mapping[str, Initial], constants: Mapping[str, Initial]
) -> Initial:
    """Return the size that the base's own code draws, or else the constant of the target."""
    constant = constants.get(stack_of(name))
    if name in drawn:
        return drawn[name]
    if constant is not None:
        return constant
    message = (
        f"base: the initial size of {name} is unknown: the base is on the meta device, and the"
        " module that owns the tensor has no reset_parameters; build the base on the CPU"
    )
    raise InputError(message, "unknown-initial-size", argument="base")


def _constants_of(target: nn.Module) -> dict[str, Initial]:
    """Return the tensors of the target that start as constants, by stack.

    Raise an InputError if other sizes differ from what the modules' own code draws.
    """
    items = _real_items(target)
    drawn = drawn_by_code(unwrap(target), items)
    constants: dict[str, Initial] = {}
    for name, item in items.items():
        measured = measure(item.tensor)
        if measured.constant is not None:
            constants[stack_of(name)] = measured
        if name in drawn and not agree(measured, drawn[name], item.tensor.numel()):
            message = (
                f"base: the initial size of {name} is unknown: the base is on the meta device, and"
                " its constructor draws other sizes than reset_parameters of its modules"
                f" ({measured.rms:.3g} instead of {drawn[name].rms:.3g} at the size of the target);"
                " build the base on the CPU"
            )
            raise InputError(message, "unknown-initial-size", argument="base")
    return constants


def agree(measured: Initial, drawn: Initial, samples: int) -> bool:
    """Return whether a measured size is a drawn one up to the noise of few entries."""
    return abs(measured.rms - drawn.rms) <= (0.1 + 3 / math.sqrt(samples)) * drawn.rms


def drawn_by_code(model: nn.Module, wanted: Mapping[str, Item]) -> dict[str, Initial]:
    """Return the sizes of those tensors that the model's own code initializes."""
    by_name: dict[str, Initial] = {}
    by_stack: dict[tuple[str, tuple[int, ...]], Initial] = {}  # by stack and shape
    initialize = getattr(model, "_init_weights", None)
    with seeded(0):
        for path, module in _units(model):
            shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
            for name, parameter in _initialized(module, initialize).named_parameters():
                if _unwritten(parameter):
                    continue
                full = clean(f"{path}.{name}".lstrip("."))
                by_name[full] = measure(parameter)
                by_stack.setdefault((stack_of(full), shapes[name]), by_name[full])
    sizes: dict[str, Initial] = {}
    for name, item in wanted.items():
        stack = (stack_of(name), item.shape)
        if name in by_name:
            sizes[name] = by_name[name]
        elif stack in by_stack:
            sizes[name] = by_stack[stack]
    return sizes


def drawn_by_torch(model: nn.Module) -> dict[str, Initial]:
    """Return the sizes that modules of torch draw for their own tensors.

    Their code knows the shapes of one module only.
    """
    sizes: dict[str, Initial] = {}
    kinds: dict[tuple[object, ...], dict[str, Initial]] = {}
    with seeded(0):
        for path, module in unwrap(model).named_modules():
            shapes = tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
            is_owner = next(module.parameters(recurse=False), None) is not None
            if not is_owner or not type(module).__module__.startswith("torch.nn."):
                continue
            kind = (type(module), shapes)
            if kind not in kinds:
                kinds[kind] = _drawn_by_module(module)
            for name, size in kinds[kind].items():
                sizes[clean(f"{path}.{name}".lstrip("."))] = size
    return sizes


def _drawn_by_module(module: nn.Module) -> dict[str, Initial]:
    sizes: dict[str, Initial] = {}
    for name, parameter in _initialized(module, None).named_parameters():
        if not _unwritten(parameter):
            sizes[name] = measure(parameter)
    return sizes


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable and frozen numbers in a model."""
    return sum(p.numel() for p in model.parameters())


def _units(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield a small model as a whole; for a large one, its parts without lists of layers, and one
    layer of every kind from each list."""
    if parameter_count(model) <= SMALL:
        yield "", model
        return
    lists: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            lists.append(f"{path}.")
    kinds: set[tuple[str, type[nn.Module], tuple[tuple[str, tuple[int, ...]], ...]]] = set()
    stack = [("", model)]
    while stack:
        path, module = stack.pop()
        holds_list = any(inside.startswith(f"{path}.") or not path for inside in lists)
        if holds_list:
            if next(module.parameters(recurse=False), None) is not None:
                yield path, _without_children(module)
            for name, child in module.named_children():
                stack.append((f"{path}.{name}".lstrip("."), child))
            continue
        shapes = tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
        kind = (stack_of(path), type(module), shapes)
        if kind not in kinds:
            kinds.add(kind)
            yield path, module


def _without_children(module: nn.Module) -> nn.Module:
    """Return a copy of the module without its children."""
    bare = copy.copy(module)
    bare.__dict__ = {**module.__dict__, CHILD_MODULES: {}}
    return bare


_MARK = float("nan")


def _initialized(module: nn.Module, initialize: Callable[[nn.Module], None] | None) -> nn.Module:
    """Return a copy on the CPU, initialized by the model's own code; other entries are NaN."""
    made = copy.deepcopy(module)
    for part in made.modules():
        for name, parameter in parameter_registry(part).items():
            if parameter is not None and parameter.is_meta and parameter.numel() > SAMPLE:
                parameter_registry(part)[name] = _fewer_rows(parameter)
    made.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(_MARK)
        for part in reversed(list(made.modules())):  # children first, as in constructors
            reset = getattr(part, "reset_parameters", None) or getattr(part, RESET_PARAMETERS, None)
            if reset is not None:
                reset()
        if initialize is not None:
            made.apply(initialize)
    return made


def _fewer_rows(parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter with fewer rows. Rows are outputs or tokens; initializers depend only on
    the length of a row."""
    rows = max(1, SAMPLE * parameter.shape[0] // parameter.numel())
    return nn.Parameter(parameter.new_empty((rows, *parameter.shape[1:])), parameter.requires_grad)


def _unwritten(parameter: Tensor) -> bool:
    """Return whether no code has initialized the parameter."""
    return bool(parameter.isnan().any())
