"""The optimizer that `build` returns beside the model: its class and its settings.

A plan sets learning rate, weight decay and eps of every tensor, so that the groups of the plan
replace the user's. The class stays, and so do betas, momentum and other settings of its
constructor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.observe.inventory import inventory

# Settings that a plan sets, or that change no update.
_NOT_OPTIONS = ("params", "lr", "weight_decay", "eps", "foreach", "fused", "capturable")


@dataclass(frozen=True)
class BuiltOptimizer:
    """Class and settings of an optimizer; tensors in `no_decay` have no weight decay."""

    kind: type[Optimizer]
    tuned: Mapping[str, Any] = field(default_factory=dict)  # lr, weight_decay, eps
    options: Mapping[str, Any] = field(default_factory=dict)  # other arguments of the constructor
    no_decay: tuple[str, ...] = ()


def read_optimizer(model: nn.Module, optimizer: object) -> BuiltOptimizer:
    """Return the settings of the optimizer of a model.

    Raise an InputError if groups differ in more than weight decay on and off, or if the optimizer
    leaves out a trained tensor.
    """
    if not isinstance(optimizer, Optimizer):
        raise InputError(
            "build: expected a function that returns an nn.Module or (module, optimizer), got"
            f" (module, {type(optimizer).__name__})",
            "wrong-type",
            argument="build",
        )
    _check_tensors(model, optimizer)
    groups = optimizer.param_groups
    kind = type(optimizer)
    if kind is torch.optim.Adam and groups[0].get("decoupled_weight_decay"):
        kind = torch.optim.AdamW  # the same update
    decays = {float(group.get("weight_decay", 0.0)) for group in groups}
    tuned: dict[str, Any] = {"lr": _common(groups, "lr"), "eps": _common(groups, "eps")}
    if "weight_decay" in groups[0]:
        tuned["weight_decay"] = max(decays)
    else:
        tuned["weight_decay"] = None
    if len(decays - {0.0}) > 1:
        raise _differs("weight_decay", sorted(decays))
    options: dict[str, Any] = {}
    for name, parameter in signature(kind).parameters.items():
        if name in _NOT_OPTIONS or name not in groups[0]:
            continue
        value = _common(groups, name)
        if value != parameter.default:
            options[name] = value
    without_decay: tuple[str, ...] = ()
    if len(decays) > 1:
        without_decay = _names_without_decay(model, optimizer)
    given = {name: value for name, value in tuned.items() if value is not None}
    return BuiltOptimizer(kind, given, options, without_decay)


def _check_tensors(model: nn.Module, optimizer: Optimizer) -> None:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, item in inventory(model).items():
        if item.tensor.requires_grad and id(item.tensor) not in held:
            raise InputError(
                f"build: the optimizer that it returns does not have the tensor {name}; add it, or"
                " freeze it with requires_grad_(False)",
                "optimizer-of-other-model",
                argument="build",
            )


def _common(groups: list[dict[str, Any]], name: str) -> Any:
    """Return a setting that must be the same in all groups."""
    first = groups[0].get(name)
    for group in groups[1:]:
        if group.get(name) != first:
            raise _differs(name, [group.get(name) for group in groups])
    return first


def _differs(name: str, values: list[Any]) -> InputError:
    message = (
        f"build: {name} differs between the groups of the optimizer that it returns"
        f" ({', '.join(map(str, values))}); the plan makes the groups, so expected one value"
    )
    if name == "weight_decay":
        message += " (and 0 for tensors without weight decay)"
    return InputError(message, "groups-differ", argument="build")


def _names_without_decay(model: nn.Module, optimizer: Optimizer) -> tuple[str, ...]:
    names = {id(item.tensor): name for name, item in inventory(model).items()}
    without: list[str] = []
    for group in optimizer.param_groups:
        if not float(group["weight_decay"]):
            without += [names[id(p)] for p in group["params"] if id(p) in names]
    return tuple(without)
