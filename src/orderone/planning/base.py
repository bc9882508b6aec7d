"""The base of a plan: shapes and initial sizes, from a smaller model, from overrides of a Hugging
Face configuration, or from a saved plan.

Initial sizes are measured. A base on the meta device has no values, so a copy with memory is
initialized first: by torch's `reset_parameters`, then by the `_init_weights` of Hugging Face and
nanoGPT. For a large base, only one layer of every stack is copied, one at a time. A constructor
that initializes in other ways cannot be imitated: if a target with memory differs from what its
modules' code would draw, the base needs memory too.
"""

import copy
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor, nn

from orderone.core.errors import InputError
from orderone.observe.inventory import Item, clean, inventory, shapes_of, unwrap
from orderone.observe.tensor_facts import is_here, is_plain
from orderone.planning.counterparts import stack_of
from orderone.planning.roles.vocabulary import TORCH_DEFAULT_INIT
from orderone.seeding import seeded
from orderone.torch_compat import CHILD_MODULES, RESET_PARAMETERS, parameter_registry

if TYPE_CHECKING:
    from orderone.planning.draw import Draw
    from orderone.planning.plan import Plan

SMALL = 50_000_000  # models up to this number of parameters are allocated
SAMPLE = 1 << 24  # entries that are enough to measure a tensor
BLOCK = 1 << 16  # entries of a tensor that are measured together


@runtime_checkable
class Configuration(Protocol):
    """A configuration of Hugging Face's transformers, with its settings as attributes."""

    model_type: str

    def to_dict(self) -> dict[str, Any]: ...

    if TYPE_CHECKING:

        @classmethod
        def from_dict(cls, config_dict: Mapping[str, object]) -> "Configuration": ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: object) -> None: ...


@dataclass(frozen=True)
class Initial:
    """Initial size of a tensor: its root mean square, and the value if all entries are equal."""

    rms: float
    constant: float | None = None


def measure(tensor: Tensor) -> Initial:
    """Return the present size of a tensor."""
    value = tensor.detach()
    if value.numel() == 0:
        return Initial(0.0, 0.0)
    if value.is_complex():
        value = torch.view_as_real(value)
    elif not value.is_floating_point():  # a table of numbers, or quantized weights
        value = value.double()
    if not _varies(value):
        low, high = _extremes(value)
        if low == high:
            return Initial(abs(low), low)
    return Initial(_norm(value) / math.sqrt(value.numel()))


def _varies(value: Tensor) -> bool:
    """Return whether the first and the last entry of a large tensor on the host differ.

    If they do, the tensor need not be read for its extremes.
    """
    if value.numel() <= BLOCK or not is_plain(value) or not is_here(value):
        return False
    first = value[(0,) * value.dim()]
    last = value[(-1,) * value.dim()]
    return first.item() != last.item()


def _norm(value: Tensor) -> float:
    """Return the norm in double precision.

    On the host torch copies a tensor to sum it in another precision: large ones are read in blocks.
    """
    in_blocks = value.numel() > BLOCK and is_plain(value) and is_here(value)
    if not in_blocks or not value.is_contiguous():
        return _number(torch.linalg.vector_norm(value, dtype=torch.float64))
    blocks = value.view(-1).split(BLOCK)
    norms = [torch.linalg.vector_norm(block, dtype=torch.float64).item() for block in blocks]
    return math.hypot(*norms)


def _extremes(value: Tensor) -> tuple[float, float]:
    """Return the smallest and the largest entry; in one pass where the tensor is plain."""
    if is_plain(value):
        low, high = torch.aminmax(value)
        return low.item(), high.item()
    return _number(value.min()), _number(value.max())


def _number(value: Tensor) -> float:
    full = getattr(value, "full_tensor", None)  # a DTensor is distributed over processes
    if full:
        value = full()
    return float(value)


def pooled(values: Mapping[str, Initial], entries: Mapping[str, int]) -> dict[str, Initial]:
    """Average the sizes of layers that are initialized alike: this is less noisy."""
    stacks: dict[str, list[Initial]] = {}
    for name, value in values.items():
        stacks.setdefault(stack_of(name), []).append(value)
    pools = {stack: _Pool(layers) for stack, layers in stacks.items()}
    result: dict[str, Initial] = {}
    for name, value in values.items():
        noise = 5 / math.sqrt(max(entries[name], 1))  # of the difference of two layers
        result[name] = pools[stack_of(name)].average(value, min(noise, 0.1))
    return result


class _Pool:
    """Sizes of the layers of one stack, sorted, so that layers of similar size are found fast."""

    def __init__(self, layers: Iterable[Initial]):
        random = [layer.rms for layer in layers if layer.constant is None]
        sizes = [rms for rms in random if math.isfinite(rms)]
        self.order: list[int] = sorted(range(len(sizes)), key=lambda k: sizes[k])
        self.sizes = sizes
        self.sorted: list[float] = [sizes[k] for k in self.order]
        self._averages: dict[tuple[int, int], float] = {}  # by first and last place

    def average(self, layer: Initial, noise: float) -> Initial:
        """Average the size of a layer with layers that agree up to noise.

        An initialization may depend on the layer.
        """
        if layer.constant is not None or not math.isfinite(layer.rms):
            return layer
        first = bisect_left(self.sorted, -noise * layer.rms, key=lambda rms: rms - layer.rms)
        last = bisect_right(self.sorted, noise * layer.rms, key=lambda rms: rms - layer.rms)
        if first >= last:
            return layer
        if (first, last) not in self._averages:
            self._averages[first, last] = self._average(first, last)
        return Initial(self._averages[first, last])

    def _average(self, first: int, last: int) -> float:
        chosen = sorted(self.order[first:last])  # a sum in another order would round otherwise
        squares = [self.sizes[k] * self.sizes[k] for k in chosen]
        return math.sqrt(sum(squares) / len(squares))


def exact(value: Initial, known: Iterable[float], samples: int) -> Initial:
    """Return the known standard deviation that agrees with a measurement within sampling error."""
    if value.constant is not None:
        return value
    error = min(4 / math.sqrt(2 * max(samples, 1)), 0.25)
    fits = [std for std in known if abs(value.rms - std) <= error * std]
    if fits:
        return Initial(min(fits, key=lambda std: abs(value.rms - std)))
    return value


# --- kinds of bases -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """Shapes and initial sizes by name; and the module, if there is one."""

    shapes: Mapping[str, tuple[int, ...]]
    initial: Mapping[str, Initial]
    module: nn.Module | None = field(default=None, repr=False)
    # factors of the model's own dependence on depth, if a saved plan of this very model has them
    own_depths: Mapping[str, float] = field(default_factory=dict)
    # draws of a saved plan with a start, by name; its sizes are those of `initial`
    draws: "Mapping[str, Draw]" = field(default_factory=dict)
    init: str | float | Mapping[str, str | float] | None = None  # the start of that plan


def from_module(module: nn.Module, model: nn.Module | None = None) -> Base:
    """Return shapes and initial sizes of a module.

    For a module on the meta device, `model` shows whether the modules' code initializes all of it.
    """
    inner = unwrap(module)
    config = getattr(inner, "config", None)
    is_small_meta = any(p.is_meta for p in inner.parameters()) and parameter_count(inner) <= SMALL
    # a module that was changed after it was built would lose these changes
    if is_small_meta and is_configuration(config) and is_built_from(inner, config):
        inner = built(inner, config, device="cpu")
    return Base(shapes_of(inner), initial_sizes(inner, model), inner)


def from_overrides(model: nn.Module, overrides: Mapping[str, object]) -> Base:
    """Return the base with the class of the model and a changed configuration."""
    return from_module(built(model, override(configuration(model), overrides), device="meta"))


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable and frozen numbers in a model."""
    return sum(p.numel() for p in model.parameters())


def from_plan(plan: "Plan", model: nn.Module) -> Base:
    """Return the base of a saved plan; for a Hugging Face model, with its module built again."""
    shapes = {}
    initial = {}
    for row in plan.rows:
        if row.base_shape is None or row.base_std is None or row.base_name is None:
            message = (
                "base: the saved plan is absolute and has no base; pass the module that it was made"
                " for, or a plan that is relative to a base"
            )
            raise InputError(message, "absolute-mode", argument="base")
        shapes[row.base_name] = row.base_shape
        if row.constant is None:
            value = None
        else:
            value = math.copysign(row.base_std, row.constant)
        initial[row.base_name] = Initial(row.base_std, value)
    own_depths: dict[str, float] = {}
    if {row.name: row.shape for row in plan.rows} == shapes_of(model):
        own_depths = {row.name: row.own_depth for row in plan.rows}
    sizes = plan.settings.base_sizes
    module = None
    if sizes is not None and is_configuration(getattr(unwrap(model), "config", None)):
        module = built(model, override(configuration(model), sizes), device="meta")
    draws = {row.base_name: row.draw for row in plan.rows if row.base_name and row.draw}
    return Base(shapes, initial, module, own_depths, draws, plan.settings.init)


def sizes_of(module: nn.Module | None) -> dict[str, object] | None:
    """Return the whole numbers of a configuration, nested ones under dotted names.

    A plan file contains them, so that the base can be built again.
    """
    config = getattr(module, "config", None)
    if is_configuration(config):
        return _sizes(config.to_dict())
    return None


def _sizes(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    sizes: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and "model_type" in value:
            sizes |= _sizes(value, f"{prefix}{key}.")
        elif is_sizes(value):
            sizes[f"{prefix}{key}"] = value
    return sizes


def is_sizes(value: object) -> bool:
    """Return whether `value` is a whole number, or a list of them."""
    if isinstance(value, (list, tuple)) and value:
        return all(type(number) is int for number in value)
    return type(value) is int


def configuration(model: nn.Module) -> Configuration:
    """Return the Hugging Face configuration of a model; raise an InputError if it has none."""
    config = getattr(unwrap(model), "config", None)
    if not is_configuration(config):
        raise InputError(
            "base: a mapping of overrides needs a Hugging Face model, with a config; got"
            f" {type(unwrap(model)).__name__}. Pass the base as a module: plan(model,"
            " base=build(smaller sizes))",
            argument="base",
        )
    return config


def is_configuration(config: object) -> TypeGuard[Configuration]:
    return hasattr(config, "to_dict") and hasattr(config, "model_type")


def built(model: nn.Module, config: Configuration, device: str) -> nn.Module:
    """Build a model of the same class; the random state of the caller is restored."""
    with seeded(0), torch.device(device):
        try:
            return type(unwrap(model))(config)
        # any exception is possible: the model's code checks the configuration
        except Exception as error:
            message = (
                f"base: {type(unwrap(model)).__name__} cannot be built with these sizes: {error}"
            )
            raise InputError(message, "inconsistent-sizes", argument="base") from error


def is_built_from(model: nn.Module, config: Configuration) -> bool:
    """Return whether the model has the tensors that its configuration describes.

    Adapters are added to a model afterwards, and no configuration of Hugging Face has their rank.
    """
    try:
        return shapes_of(built(model, config, device="meta")) == shapes_of(model)
    except InputError:
        return False


def override(config: Configuration, overrides: Mapping[str, object]) -> Configuration:
    """Return the configuration with other values.

    `{"text_config.hidden_size": 64}` and `{"text_config": {"hidden_size": 64}}` name a nested
    value; the other values of the nested configuration stay.

    Values that the configuration derives from changed ones (a head size, a number of key heads) are
    derived again.
    """
    values_here: dict[str, object] = {}
    values_of_parts: dict[str, dict[str, object]] = {}
    for key, value in overrides.items():
        part, dot, rest = str(key).partition(".")
        if dot:
            values_of_parts.setdefault(part, {})[rest] = value
        elif isinstance(value, Mapping) and is_configuration(getattr(config, part, None)):
            values_of_parts.setdefault(part, {}).update(value)
        else:
            values_here[key] = value
    if values_here:
        result = _changed(config, values_here)
    else:
        result = copy.deepcopy(config)
    for part, values in values_of_parts.items():
        if not is_configuration(getattr(config, part, None)):
            message = f"base: {type(config).__name__} has no nested configuration {part!r}"
            raise InputError(message, "unknown-name", argument="base")
        setattr(result, part, override(getattr(config, part), values))
    return result


def _changed(config: Configuration, values: Mapping[str, object]) -> Configuration:
    aliases = getattr(config, "attribute_map", {})
    stored = config.to_dict()
    for key in values:
        if not hasattr(config, key):
            numbers = [name for name, value in stored.items() if type(value) is int]
            known = ", ".join(sorted(numbers))
            near = get_close_matches(str(key), [*numbers, *aliases], n=1)
            if near:
                hint = f"; did you mean {near[0]!r}?"
            else:
                hint = ""
            message = (
                f"base: {type(config).__name__} has no {key!r}{hint}; its whole numbers are {known}"
            )
            raise InputError(message, "unknown-name", argument="base")
    changes = {aliases.get(key, key): value for key, value in values.items()}
    settings: dict[str, object] = {}
    for key, value in stored.items():
        if key in changes or not _is_derived(config, stored, key):
            settings[key] = value
    settings |= changes
    try:
        return type(config).from_dict(settings)
    except Exception as error:  # configurations may raise anything
        message = f"base: {type(config).__name__} does not accept these sizes: {error}"
        raise InputError(message, "inconsistent-sizes", argument="base") from error


def _is_derived(config: Configuration, stored: Mapping[str, object], key: str) -> bool:
    """Return whether the configuration derives this whole number from others."""
    if type(stored[key]) is not int:
        return False
    settings = dict(stored)
    del settings[key]
    try:
        without = type(config).from_dict(settings)
        return getattr(without, key, None) == stored[key]
    except Exception:  # the configuration cannot be made without the number
        return False


# --- initial sizes --------------------------------------------------------------------------------


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
                f"base: {name} varies, but starts as a constant in the target: this base has been"
                " trained, and its sizes are not those at initialization; build a new one"
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
                " its constructor initializes otherwise than its modules' reset_parameters"
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
