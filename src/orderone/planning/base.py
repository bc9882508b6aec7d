"""The base that a target is compared with: shapes and initial sizes, from a smaller model, from
overrides of a Hugging Face configuration, or from a saved plan.

Initial sizes are measured. A base on the meta device has no values, and is initialised first: a
copy of it is made real and initialised by the model's own code, torch's `reset_parameters`, then
the `_init_weights` of Hugging Face and nanoGPT. Of a large base only one layer of every stack is,
one at a time. Code that initialises elsewhere, in a constructor, is out of reach; a real target of
the same code shows that, and then the base has to be real too.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from orderone.observe.inventory import Item, clean, inventory, unwrap
from orderone.planning.counterparts import stack_of
from orderone.planning.roles.vocabulary import TORCH_DEFAULT_INIT
from orderone.seeding import seeded
from orderone.torch_compat import CHILD_MODULES, RESET_PARAMETERS, parameter_registry

if TYPE_CHECKING:
    from orderone.planning.plan import Plan

SMALL = 50_000_000  # parameters that may be allocated without asking
SAMPLE = 1 << 24  # numbers that are enough to measure a tensor
REMEDY = "build the base on the CPU (it is small)"


@dataclass(frozen=True)
class Initial:
    """Root mean square, and the value if all entries are the same: zeros stay zeros, ones are
    gains."""

    rms: float
    constant: float | None = None


def measure(tensor: Tensor) -> Initial:
    value = tensor.detach()
    if value.numel() == 0:
        return Initial(0.0, 0.0)
    if value.is_complex():
        value = torch.view_as_real(value)
    low = _number(value.min())
    high = _number(value.max())
    if low == high:
        return Initial(abs(low), low)
    return Initial(
        _number(torch.linalg.vector_norm(value, dtype=torch.float64)) / math.sqrt(value.numel())
    )


def _number(value: Tensor) -> float:
    full = getattr(value, "full_tensor", None)  # a DTensor's value is spread over processes
    return float(full() if full else value)


def pooled(values: Mapping[str, Initial]) -> dict[str, Initial]:
    """Layers of a stack that start alike are one sample: their common size is less noisy."""
    stacks: dict[str, list[Initial]] = {}
    for name, value in values.items():
        stacks.setdefault(stack_of(name), []).append(value)
    return {
        name: value if value.constant is not None else _pool(value, stacks[stack_of(name)])
        for name, value in values.items()
    }


def _pool(one: Initial, alike: list[Initial]) -> Initial:
    """Only what agrees to a few percent is pooled: an initialization may depend on the layer."""
    near = [x.rms for x in alike if x.constant is None and abs(x.rms - one.rms) <= 0.1 * one.rms]
    if near:
        return Initial(math.sqrt(sum(rms * rms for rms in near) / len(near)))
    return one


def exact(value: Initial, known: Iterable[float], samples: int) -> Initial:
    """The known standard deviation that the measurement fits within its sampling error."""
    error = min(4 / math.sqrt(2 * max(samples, 1)), 0.25)
    fits = [std for std in known if value.constant is None and abs(value.rms - std) <= error * std]
    if fits:
        return Initial(min(fits, key=lambda std: abs(value.rms - std)))
    return value


# --- kinds of bases -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """Shapes and initial sizes by name; the module itself where there is one."""

    shapes: Mapping[str, tuple[int, ...]]
    initial: Mapping[str, Initial]
    module: nn.Module | None = field(default=None, repr=False)


def from_module(module: nn.Module, model: nn.Module | None = None) -> Base:
    """Shapes and initial sizes of a module. On the meta device, `model` shows whether its code
    initialises as told."""
    inner = unwrap(module)
    config = getattr(inner, "config", None)
    on_meta = any(p.is_meta for p in inner.parameters())
    if on_meta and is_configuration(config) and _numel(inner) <= SMALL:
        inner = built(inner, config, device="cpu")
    shapes = {name: item.shape for name, item in inventory(inner).items()}
    return Base(shapes, initial_sizes(inner, model), inner)


def from_overrides(model: nn.Module, overrides: Mapping[str, Any]) -> Base:
    """The model's own class with a smaller configuration; a large one is built without memory."""
    return from_module(built(model, override(configuration(model), overrides), device="meta"))


def _numel(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def from_plan(plan: "Plan", model: nn.Module) -> Base:
    """What a saved plan was relative to; for a Hugging Face model, with the base built again, to be
    looked at."""
    shapes = {}
    initial = {}
    for row in plan.rows:
        if row.base_shape is None or row.base_std is None or row.base_name is None:
            raise ValueError(
                "base: the saved plan is absolute (it was made with base=None) and has no base to"
                " compare with"
            )
        shapes[row.base_name] = row.base_shape
        if row.constant is None:
            value = None
        else:
            value = math.copysign(row.base_std, row.constant)
        initial[row.base_name] = Initial(row.base_std, value)
    sizes = plan.settings.base_sizes
    if sizes is None or not is_configuration(getattr(unwrap(model), "config", None)):
        return Base(shapes, initial)
    return Base(shapes, initial, built(model, override(configuration(model), sizes), device="meta"))


def sizes_of(module: nn.Module | None) -> dict[str, Any] | None:
    """The whole numbers of a configuration, nested ones under dotted names: what makes up a base,
    in a plan file."""
    config: Any = getattr(module, "config", None)
    if is_configuration(config):
        return _sizes(config.to_dict())
    return None


def _sizes(values: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and "model_type" in value:
            found |= _sizes(value, f"{prefix}{key}.")
        elif is_sizes(value):
            found[f"{prefix}{key}"] = value
    return found


def is_sizes(value: Any) -> bool:
    """A whole number, or a list of them."""
    numbers = value if isinstance(value, (list, tuple)) and value else [value]
    return all(type(x) is int for x in numbers)


def configuration(model: nn.Module) -> Any:
    config = getattr(unwrap(model), "config", None)
    if not is_configuration(config):
        raise ValueError(
            "base: a mapping of overrides needs a Hugging Face model, with a config; got"
            f" {type(unwrap(model)).__name__}. Give the base as a module: plan(model,"
            " base=build(smaller sizes))"
        )
    return config


def is_configuration(config: object) -> bool:
    return hasattr(config, "to_dict") and hasattr(config, "model_type")


def built(model: nn.Module, config: Any, device: str) -> nn.Module:
    """A model of the same class, without disturbing the random numbers of the caller."""
    with seeded(0), torch.device(device):
        try:
            return type(unwrap(model))(config)
        except (
            Exception
        ) as error:  # configurations are checked, if at all, by the code that uses them
            raise ValueError(
                f"{type(unwrap(model)).__name__} cannot be built with these sizes: {error}"
            ) from error


def override(config: Any, overrides: Mapping[str, Any]) -> Any:
    """The configuration with other values; `text_config.hidden_size` reaches into a part. What a
    configuration derives from the values that changed (a head size, a number of key heads) is
    derived again."""
    own = {key: value for key, value in overrides.items() if "." not in str(key)}
    result = _changed(config, own) if own else copy.deepcopy(config)
    inner: dict[str, dict[str, Any]] = {}
    for key, value in overrides.items():
        part, dot, rest = str(key).partition(".")
        if dot:
            inner.setdefault(part, {})[rest] = value
    for part, values in inner.items():
        if not is_configuration(getattr(config, part, None)):
            raise ValueError(f"base: {type(config).__name__} has no part {part!r}")
        setattr(result, part, override(getattr(config, part), values))
    return result


def _changed(config: Any, values: Mapping[str, Any]) -> Any:
    aliases = getattr(config, "attribute_map", {})
    stored = config.to_dict()
    for key in values:
        if not hasattr(config, key):
            known = ", ".join(sorted(name for name, v in stored.items() if type(v) is int))
            raise ValueError(
                f"base: {type(config).__name__} has no {key!r}; its whole numbers are {known}"
            )
    given = {aliases.get(key, key): value for key, value in values.items()}
    kept = {
        key: value
        for key, value in stored.items()
        if key in given or not _is_derived(config, stored, key)
    }
    try:
        return type(config).from_dict({**kept, **given})
    except Exception as error:  # configurations check what they like
        raise ValueError(
            f"base: {type(config).__name__} does not take these sizes: {error}"
        ) from error


def _is_derived(config: Any, stored: Mapping[str, Any], key: str) -> bool:
    """A whole number that the configuration would find by itself."""
    if type(stored[key]) is not int:
        return False
    try:
        without = type(config).from_dict(
            {name: value for name, value in stored.items() if name != key}
        )
        return getattr(without, key, None) == stored[key]
    except Exception:  # it cannot do without
        return False


# --- initial sizes --------------------------------------------------------------------------------


def initial_sizes(base: nn.Module, target: nn.Module | None = None) -> dict[str, Initial]:
    """The initial size of every parameter of the base, real or on the meta device."""
    items = inventory(base)
    sizes = {name: measure(item.tensor) for name, item in items.items() if not item.tensor.is_meta}
    missing = {name: item for name, item in items.items() if name not in sizes}
    if target is not None:
        _must_be_fresh(sizes, target)
    if missing:
        shown = {} if target is None else _shown_by(target)
        told = _reinitialised(unwrap(base), missing)
        sizes |= {name: _either(name, told, shown) for name in missing}
    return {
        name: exact(value, _known(name, items, base), items[name].tensor.numel())
        for name, value in pooled(sizes).items()
    }


def _known(name: str, items: Mapping[str, Item], base: nn.Module) -> list[float]:
    """Standard deviations that common initializers give: torch's for matrices and their biases,
    Hugging Face's for all."""
    known = [1.0]
    place = items[name].places[0]
    weight = items.get(f"{place.module}.weight".lstrip("."))
    if place.owner in TORCH_DEFAULT_INIT and weight is not None:
        known.append(
            (3 * weight.tensor.numel() / weight.shape[0]) ** -0.5
        )  # uniform within fan_in^-1/2
    given = getattr(getattr(unwrap(base), "config", None), "initializer_range", None)
    return known + ([given] if isinstance(given, float) else [])


def _must_be_fresh(base: Mapping[str, Initial], target: nn.Module) -> None:
    """What starts as a constant in the target and varies in the base has been trained there."""
    ours = {
        name: item.tensor for name, item in inventory(target).items() if not item.tensor.is_meta
    }
    vectors = [
        name
        for name, value in base.items()
        if value.constant is None and name in ours and ours[name].dim() <= 1
    ]
    trained = [name for name in vectors if measure(ours[name]).constant is not None]
    if trained:
        raise ValueError(
            f"base: {trained[0]} varies, though it starts as a constant: this base has been"
            " trained, and its sizes are not those of initialization; build a fresh one"
        )


def _either(name: str, told: Mapping[str, Initial], shown: Mapping[str, Initial]) -> Initial:
    """What the base's own code gives; where it gives nothing, a constant of the target, which has
    no size to follow."""
    constant = shown.get(stack_of(name))
    if name in told:
        return told[name]
    if constant is not None:
        return constant
    raise ValueError(
        f"base: the initial size of {name} cannot be known: the base is on the meta device, and the"
        f" module that owns the tensor has no reset_parameters; {REMEDY}"
    )


def _shown_by(target: nn.Module) -> dict[str, Initial]:
    """Constants of a real target, by stack. An error if the target does not start as its modules'
    code says."""
    items = {name: item for name, item in inventory(target).items() if not item.tensor.is_meta}
    told = _reinitialised(unwrap(target), items)
    constants: dict[str, Initial] = {}
    for name, item in items.items():
        seen = measure(item.tensor)
        if seen.constant is not None:
            constants[stack_of(name)] = seen
        if name in told and not _agree(seen, told[name], item.tensor.numel()):
            raise ValueError(
                f"base: the initial size of {name} cannot be known: the base is on the meta device,"
                f" and its constructor does more than its modules ({seen.rms:.3g} instead of"
                f" {told[name].rms:.3g} at the size of the target); {REMEDY}"
            )
    return constants


def _agree(one: Initial, other: Initial, samples: int) -> bool:
    return abs(one.rms - other.rms) <= (0.1 + 3 / math.sqrt(samples)) * other.rms


def _reinitialised(model: nn.Module, wanted: Mapping[str, Item]) -> dict[str, Initial]:
    """What the model's own code gives to each tensor, as far as it gives anything."""
    found: dict[tuple[str, tuple[int, ...]], Initial] = {}
    with seeded(0):
        for path, module in _units(model):
            shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
            for name, parameter in _materialised(
                module, getattr(model, "_init_weights", None)
            ).named_parameters():
                full = clean(f"{path}.{name}".lstrip("."))
                if not _unwritten(parameter):
                    found[full, ()] = measure(parameter)
                    found.setdefault((stack_of(full), shapes[name]), found[full, ()])
    keys = {name: ((name, ()), (stack_of(name), item.shape)) for name, item in wanted.items()}
    return {
        name: found[key] for name, pair in keys.items() for key in reversed(pair) if key in found
    }


def _units(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """A small model whole; of a large one the pieces that hold no list of layers, and of every list
    one layer a kind."""
    if sum(p.numel() for p in model.parameters()) <= SMALL:
        yield "", model
        return
    lists = {
        path
        for path, module in model.named_modules()
        if isinstance(module, (nn.ModuleList, nn.ModuleDict))
    }
    seen: set[tuple] = set()
    stack = [("", model)]
    while stack:
        path, module = stack.pop()
        if any(inside == path or inside.startswith(f"{path}.") or not path for inside in lists):
            own = [(name, p) for name, p in parameter_registry(module).items() if p is not None]
            if own:
                yield path, _only_own(module)
            stack.extend(
                (f"{path}.{name}".lstrip("."), child) for name, child in module.named_children()
            )
            continue
        kind = (
            stack_of(path),
            type(module),
            tuple((n, tuple(p.shape)) for n, p in module.named_parameters()),
        )
        if kind not in seen:
            seen.add(kind)
            yield path, module


def _only_own(module: nn.Module) -> nn.Module:
    """The module without its children."""
    bare = copy.copy(module)
    bare.__dict__ = {**module.__dict__, CHILD_MODULES: {}}
    return bare


_MARK = float("nan")


def _materialised(module: nn.Module, initialise: Callable[[nn.Module], None] | None) -> nn.Module:
    made = copy.deepcopy(module)
    for part in made.modules():
        for name, parameter in parameter_registry(part).items():
            if parameter is not None and parameter.is_meta and parameter.numel() > SAMPLE:
                parameter_registry(part)[name] = _fewer_rows(parameter)
    made.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(_MARK)
        for part in reversed(list(made.modules())):  # as constructors do: parts first
            reset = getattr(part, "reset_parameters", None) or getattr(part, RESET_PARAMETERS, None)
            if reset is not None:
                reset()
        if initialise is not None:
            made.apply(initialise)
    return made


def _fewer_rows(parameter: nn.Parameter) -> nn.Parameter:
    """A sample of a huge table or matrix. Rows are outputs or tokens: initializers look at the
    length of a row."""
    rows = max(1, SAMPLE * parameter.shape[0] // parameter.numel())
    return nn.Parameter(parameter.new_empty((rows, *parameter.shape[1:])), parameter.requires_grad)


def _unwritten(parameter: Tensor) -> bool:
    return bool(parameter.isnan().any())
