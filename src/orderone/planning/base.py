"""The base of a plan: shapes and initial sizes, from a smaller model, from overrides of a Hugging
Face configuration, or from a saved plan.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, runtime_checkable

import torch
from torch import nn

from orderone.core.errors import InputError
from orderone.observe.inventory import shapes_of, unwrap
from orderone.planning.initial import Initial
from orderone.planning.initial_sizes import SMALL, initial_sizes, parameter_count
from orderone.seeding import seeded

if TYPE_CHECKING:
    from orderone.planning.draw import Draw
    from orderone.planning.plan import Plan


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
            "base: entries of a configuration need a Hugging Face model, with a config; got"
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
            message = f"base: {type(config).__name__} has no {key!r}; its whole numbers are {known}"
            if near and near[0] in aliases:
                message += f"; did you mean {near[0]!r} (= {aliases[near[0]]!r})?"
            elif near:
                message += f"; did you mean {near[0]!r}?"
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
