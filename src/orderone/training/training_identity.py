"""Identity of a training: the settings that change its losses, as texts for error messages.

A checkpoint can be resumed only by a training with the same identity. Settings of the optimizer are
listed tensor by tensor, so that grouping does not matter. Modules are described by their class and
`extra_repr`. Values of tensors are left out: a resumed training takes them from the checkpoint.
"""

import re
from collections.abc import Mapping, Sequence

from torch import nn
from torch.optim import Optimizer

from orderone.core.canonical import digest
from orderone.optimizers.table import class_name
from orderone.planning import Plan
from orderone.training.fingerprint import SIMPLE, identity
from orderone.training.schedule import Factor, Schedule
from orderone.training.source import Source

# Entries of param groups that change no update: implementation options, scheduler state.
_NO_EFFECT = ("params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def modules(model: nn.Module) -> dict[str, str]:
    """Describe each module. Call it before sharding, which gives modules other classes."""
    descriptions: dict[str, str] = {}
    for name, module in model.named_modules():
        options = _ADDRESS.sub("", module.extra_repr())
        descriptions[f"module {name or '(the model)'}"] = f"{type(module).__name__}({options})"
    return descriptions


def data_name(source: Source) -> str:
    if isinstance(source.name, str):
        return source.name
    return _short(source.name)


def loss_name(loss: object, source: Source) -> str | None:
    """Return the name of a loss; None for the loss of the data, which the data's name covers."""
    if loss is None or loss is source.loss:
        return None
    return _code(loss)


def schedule_name(factor: Factor) -> str:
    if not isinstance(factor, Schedule):
        return _code(factor)
    return f"{factor.name} (warmup {factor.warmup}, final {factor.final:g})"


def updates(
    plan: Plan | None, optimizer: Optimizer, rates: Sequence[float], model: nn.Module
) -> dict[str, object]:
    """Describe the rule, the optimizer, and what it does with every tensor.

    `rates` are those before the schedule.
    """
    description: dict[str, object] = {}
    if plan is None:
        description["rule"] = None
        description["optimizer"] = _optimizer_name(type(optimizer))
    else:
        description["rule"] = plan.settings.rule
        description["optimizer"] = plan.settings.label
    names = {id(p): name for name, p in model.named_parameters()}
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        settings = {"lr": float(rate), **_simple(group)}
        for number, p in enumerate(group["params"]):
            name = names.get(id(p), f"tensor {number}")
            for setting, value in settings.items():
                description[f"{setting} of {name}"] = value
    return description


def _optimizer_name(kind: type[Optimizer]) -> str:
    if kind.__module__.startswith("torch.optim"):
        return kind.__name__.lower()
    return class_name(kind)


def _simple(group: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a group that are numbers, texts, or sequences of them."""
    settings: dict[str, object] = {}
    for name, value in group.items():
        if name in _NO_EFFECT:
            continue
        if isinstance(value, SIMPLE):
            settings[name] = value
        elif isinstance(value, (tuple, list)) and all(isinstance(x, SIMPLE) for x in value):
            settings[name] = list(value)
    return settings


def _code(function: object) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name} ({_short(identity(function))})"


def _short(thing: object) -> str:
    return digest(thing)[:12]
