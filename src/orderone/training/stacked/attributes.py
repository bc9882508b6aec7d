"""Attributes of a model that training has changed, given to another model of the same structure."""

import copy
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from orderone.torch_compat import is_batchedtensor
from orderone.training.stacked.alike import attribute_texts, hooks_of
from orderone.training.stacked.value_text import (
    DEEPEST,
    GENERATORS,
    SIMPLE,
    parts_of,
    user_attributes,
)

COPIED = (*SIMPLE, np.ndarray, np.generic, torch.Generator, *GENERATORS)
COUNTS = (bool, int, str)
Attributes: TypeAlias = dict[tuple[str, str], object]  # by name of the module and the attribute


def changed_attributes(source: nn.Module, target: nn.Module) -> Attributes:
    """Return copies of the attributes of `source` that `target` has otherwise, for `target`.

    Modules and tensors of `source` that attributes refer to become those of `target`. Attributes
    that cannot be copied are left out.
    """
    here = attribute_texts(source)
    there = attribute_texts(target)
    changed: Attributes = {}
    for name, module in source.named_modules():
        for key, value in user_attributes(module):
            if here[name, key] != there.get((name, key)):
                changed[name, key] = value
    return copied(changed, source, target)


def different_count(alone: nn.Module, stacked: nn.Module) -> str | None:
    """Return the first whole number, flag or text that differs between two models of one trial.

    They have made the same steps. A stack may run code of the model more or less often, such
    as a block under torch.utils.checkpoint, or a hook on an activation. The search covers
    attributes and hooks, and what these hold: variables of functions, items, slots.
    """
    others = dict(stacked.named_modules())
    for name, module in alone.named_modules():
        if name not in others:
            return f"the module {name} is not in the stack"
        there = _held(others[name])
        for key, value in _held(module).items():
            if key not in there:
                continue
            different = _different_part(value, there[key], DEEPEST, set())
            if different is not None:
                place = f"{name}.{key}".lstrip(".")
                here, other = different
                return f"{place} is {here!r} after steps alone, and {other!r} in a stack"
    return None


def _held(module: nn.Module) -> dict[str, object]:
    """Return the attributes and hooks of a module by name."""
    return dict([*user_attributes(module), *hooks_of(module)])


def _different_part(
    value: object, other: object, depth: int, visited: set[int]
) -> tuple[object, object] | None:
    """Return the first count that differs within two values of the same kind."""
    if type(value) is not type(other):
        return None
    if type(value) in COUNTS:
        return None if value == other else (value, other)
    if isinstance(value, (*COPIED, Tensor, nn.Module)) or id(value) in visited or depth == 0:
        return None
    visited.add(id(value))
    there = dict(parts_of(other))
    for key, part in parts_of(value):
        if key in there:
            different = _different_part(part, there[key], depth - 1, visited)
            if different is not None:
                return different
    return None


def copied(attributes: Attributes, source: nn.Module, target: nn.Module) -> Attributes:
    """Return copies of attributes of one model for another one."""
    if not attributes:
        return {}
    memo = _counterparts(source, target)
    copies: Attributes = {}
    for place, value in attributes.items():
        try:
            if _is_data(value, memo):
                copies[place] = copy.deepcopy(value, memo)
        except Exception:  # objects of the user may raise anything
            continue
    return copies


def set_attributes(model: nn.Module, attributes: Attributes) -> None:
    """Set attributes, past the code that modules may run when one is set."""
    if not attributes:
        return
    modules = dict(model.named_modules())
    for (name, key), value in attributes.items():
        if name in modules:
            vars(modules[name])[key] = value


def _counterparts(source: nn.Module, target: nn.Module) -> dict[int, object]:
    """Return modules and tensors of `target` by the identity of those of `source`."""
    memo: dict[int, object] = {}
    others: dict[str, object] = dict(target.named_modules())
    for name, module in source.named_modules():
        if name in others:
            memo[id(module)] = others[name]
    others = {**dict(target.named_parameters()), **dict(target.named_buffers())}
    for name, x in [*source.named_parameters(), *source.named_buffers()]:
        if name in others:
            memo[id(x)] = others[name]
    return memo


def _is_data(value: object, memo: Mapping[int, object], depth: int = DEEPEST) -> bool:
    """Return whether a deep copy shares nothing that can change with the original.

    A function does: it is not copied, and neither are the variables that it has captured. A tensor
    of all members, which was left behind by a pass, cannot be copied.
    """
    if id(value) in memo or isinstance(
        value, (*SIMPLE, np.ndarray, np.generic, torch.Generator, *GENERATORS)
    ):
        return True
    if isinstance(value, Tensor):
        return not is_batchedtensor(value)
    if depth == 0 or callable(value):
        return False
    if isinstance(value, Mapping):
        inside = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        inside = list(value)
    elif hasattr(value, "__dict__") and not isinstance(value, Iterator):
        inside = list(vars(value).values())
    else:
        return False
    return all(_is_data(part, memo, depth - 1) for part in inside)
