"""Interface of a trainer's format: plain data in the trainer's own fields."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from torch import nn

from orderone.core.errors import InputError
from orderone.observe.inventory import clean, unwrap
from orderone.planning.exports.content import Content, Group
from orderone.planning.exports.patterns import regex

Data: TypeAlias = dict[str, Any]
TorchGroups: TypeAlias = list[dict[str, Any]]

# what an export may leave out, with allow_loss
LOSSES: Mapping[str, str] = {
    "eps": "different eps for different tensors",
    "multipliers": "factors in the forward pass",
    "optimizer": "the optimizer of some tensors",
    "rows": "learning rates of some rows of a tensor",
    "betas": "different betas for different tensors",
    "options": "options of the optimizer",
}


@dataclass(frozen=True)
class Base:
    """Settings that the trainer gives to all tensors; groups differ from them."""

    optimizer: str
    lr: float
    weight_decay: float
    min_lr: float
    betas: tuple[float, float] | None
    # options of the optimizer's class beside lr, weight_decay, eps and betas: momentum, amsgrad
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Values:
    """Settings of one tensor, as a trainer would read them from an export."""

    lr: float
    weight_decay: float
    eps: float | None
    betas: tuple[float, ...] | None = None  # if the export sets them


class Format(ABC):
    """Format of one trainer."""

    optimizers: ClassVar[Mapping[str, str]]  # name in a plan -> name of the trainer
    holds: ClassVar[frozenset[str]] = frozenset({"eps", "betas"})
    advice: ClassVar[str]  # how to use the export, in a sentence or two
    has_default: ClassVar[bool] = False  # tensors that no pattern matches have settings, too
    takes_min_lr: ClassVar[bool] = False  # groups have smallest learning rates of their own
    numbers_by_stage: ClassVar[bool] = False  # stages of a pipeline count their layers from 0
    # what to do about a schedule that sets the same number for several groups
    schedule_remedy: ClassVar[str] = (
        "Use a schedule that multiplies the learning rate of each group, floors included"
    )

    def takes(self, optimizer: str, option: str) -> bool:
        """Return whether the format can hold this option of the optimizer's class."""
        return "options" in self.holds

    def names_in(self, model: nn.Module) -> list[str]:
        """Return the names of the trained tensors as the trainer compares them with patterns."""
        return [name for name, p in model.named_parameters() if p.requires_grad]

    @abstractmethod
    def data(self, content: Content, base: Base) -> Data:
        """Return the export as plain data."""

    @abstractmethod
    def text(self, data: Data) -> str:
        """Return the export as the trainer's users write it: Python code, YAML or JSON."""

    @abstractmethod
    def build(self, data: Data, model: nn.Module | None) -> object:
        """Return the objects that the trainer's own code takes."""

    @abstractmethod
    def read(self, data: Data, names: Collection[str]) -> dict[str, Values]:
        """Return the settings of tensors with these names, by the trainer's own rules."""


def group_options(group: Group, base: Base) -> dict[str, Any]:
    """Return the settings of a group as options of a torch optimizer."""
    options: dict[str, Any] = {"lr": group.lr, "weight_decay": group.weight_decay, **base.options}
    if group.eps is not None:
        options["eps"] = group.eps
    if base.betas is not None:
        options["betas"] = list(base.betas)
    for name, value in group.averages.items():
        if isinstance(value, tuple):
            options[name] = list(value)
        else:
            options[name] = value
    return options


def regex_groups(content: Content, base: Base) -> list[dict[str, Any]]:
    """Return every group as a regular expression with options of a torch optimizer."""
    groups: list[dict[str, Any]] = []
    for group in content.groups:
        groups.append({"pattern": regex(group.names, content.names), **group_options(group, base)})
    return groups


def first_match(
    groups: Sequence[Mapping[str, Any]], names: Collection[str]
) -> dict[str, Mapping[str, Any]]:
    """Return the first group whose regular expression matches, for each name that has one."""
    matches: dict[str, Mapping[str, Any]] = {}
    for name in names:
        for group in groups:
            if re.search(group["pattern"], name):
                matches[name] = group
                break
    return matches


def trained_tensors(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained tensors of a model, which may be wrapped, by their names inside."""
    named = unwrap(model).named_parameters()
    return {clean(name): p for name, p in named if p.requires_grad}


def torch_groups(groups: Sequence[Mapping[str, Any]], model: nn.Module | None) -> TorchGroups:
    """Return parameter groups of torch.optim with the tensors of `model`."""
    if model is None:
        raise InputError("model: expected the model that the trainer trains", argument="model")
    tensors = trained_tensors(model)
    matched = first_match(groups, tensors)
    missing = [name for name in tensors if name not in matched]
    if missing:
        raise InputError(
            f"model: no pattern of the export matches {', '.join(missing[:3])}"
            f"{' ...' if missing[3:] else ''}; expected the tensors of the planned model",
            argument="model",
        )
    made: TorchGroups = []
    for group in groups:
        options = {key: value for key, value in group.items() if key != "pattern"}
        if "betas" in options:
            options["betas"] = tuple(options["betas"])
        names = [name for name in tensors if matched[name] is group]
        if names:
            made.append({"params": [tensors[name] for name in names], **options})
    return made


def values(group: Mapping[str, Any]) -> Values:
    """Return the settings of a group with the fields of torch.optim."""
    return Values(group["lr"], group["weight_decay"], group.get("eps"), read_betas(group))


def read_betas(options: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Return the betas among the options of an optimizer."""
    betas = options.get("betas", options.get("alpha"))
    if betas is None:
        return None
    if isinstance(betas, (tuple, list)):
        return tuple(betas)
    return (betas,)
