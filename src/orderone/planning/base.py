"""What a target is compared with: a smaller model, overrides of a Hugging Face configuration, a
saved plan, or nothing."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from orderone.observe.inventory import inventory, unwrap
from orderone.planning.initial_sizes import SMALL, Initial, initial_sizes
from orderone.seeding import seeded

if TYPE_CHECKING:
    from orderone.planning.plan import Plan


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
