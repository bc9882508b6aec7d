"""Optimizers that plans know: update law, torch class and defaults of each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from inspect import Parameter, signature
from typing import Any

import torch
from torch.optim import Optimizer

from orderone.core.errors import one_of
from orderone.optimizers.lion import Lion

Eps = float | tuple[float | None, float] | None


@dataclass(frozen=True)
class Algorithm:
    """An optimizer of torch: its update law in theory, and the defaults of its constructor."""

    name: str
    law: str
    lr: float
    weight_decay: float
    eps: Eps = None
    user_class: type[Optimizer] | None = (
        None  # a subclass of it that the user passed; it is the one to construct
    )

    @property
    def label(self) -> str:
        """Its name, with the user's class if there is one: `adamw (my_package.MyAdam)`."""
        return label(self.name, None if self.user_class is None else class_name(self.user_class))


ALGORITHMS = {
    a.name: a
    for a in (
        Algorithm("sgd", "sgd", 1e-3, 0.0),
        Algorithm("adam", "adam", 1e-3, 0.0, 1e-8),
        Algorithm("adamw", "adamw", 1e-3, 1e-2, 1e-8),
        Algorithm("adafactor", "adafactor", 1e-2, 0.0, (None, 1e-3)),
        Algorithm("muon", "muon", 1e-3, 0.1, 1e-7),
        Algorithm("lion", "sign", 1e-4, 0.0),
    )
}
CLASSES: dict[str, type[Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
    "muon": torch.optim.Muon,
    "lion": Lion,
}
REST = "adamw"  # what takes the tensors that Muon leaves
FUSED = ("sgd", "adam", "adamw")  # torch has one kernel for the whole update of these


def algorithm(optimizer: object) -> Algorithm:
    """Return the entry of an optimizer's name or class.

    A subclass of a known class is used as it is, with the update law of the nearest known class. A
    class that only has the name of a known one is not that one: nothing is known of its updates,
    and it is refused.
    """
    if isinstance(optimizer, str) and optimizer.endswith(")"):
        raise ValueError(f"optimizer: {optimizer} is the label of a class; pass the class itself")
    if not isinstance(optimizer, type):
        name = {"sign": "lion"}.get(str(optimizer).lower(), optimizer)
        return ALGORITHMS[one_of(name, ALGORITHMS, "optimizer")]
    name = known_name(optimizer)
    if name is None:
        raise ValueError(
            f"optimizer: the update law of {class_name(optimizer)} is not known; expected"
            f" {', '.join(ALGORITHMS)}, one of their classes, or a subclass of one. If its updates"
            " are like those of one of them, make the plan for that one and construct yours from"
            f" its groups: {optimizer.__name__}(plan.param_groups())"
        )
    known = ALGORITHMS[name]
    if optimizer is CLASSES[name]:
        return known
    return _with_own_defaults(replace(known, user_class=optimizer))


def _with_own_defaults(a: Algorithm) -> Algorithm:
    """Return the entry with the defaults that the constructor of the user's class names."""
    assert a.user_class is not None
    own = {name: default_of(a.user_class, name) for name in ("lr", "weight_decay", "eps")}
    changed = {name: value for name, value in own.items() if type(value) is type(getattr(a, name))}
    return replace(a, **changed)


def default_of(kind: type, name: str) -> Any:
    """Return the default of a constructor's parameter, None if there is none."""
    parameter = signature(kind).parameters.get(name)
    if parameter is None or parameter.default is Parameter.empty:
        return None
    return parameter.default


@cache
def known_name(kind: type) -> str | None:
    """Return the name of the nearest known class that `kind` is or inherits from."""
    names = {known: name for name, known in CLASSES.items()}
    return next((names[base] for base in kind.__mro__ if base in names), None)


def class_name(kind: type) -> str:
    """Return the name by which a user imports the class: torch.optim.AdamW, not
    torch.optim.adamw.AdamW."""
    if kind.__module__.startswith("torch.optim."):
        module = "torch.optim"
    else:
        module = kind.__module__
    return f"{module}.{kind.__qualname__}"


def label(name: str, user_class: str | None) -> str:
    if user_class is None:
        return name
    return f"{name} ({user_class})"


def label_of(optimizer: object) -> str:
    """Return the label of what a user passed as an optimizer: a name or a class, known or not."""
    if not isinstance(optimizer, type):
        return str(optimizer)
    if known_name(optimizer) is None:
        return class_name(optimizer)
    return algorithm(optimizer).label


def name_in_label(label: str) -> str:
    """Return the name of the known optimizer in a label."""
    return label.partition(" ")[0]


def construct(
    kind: type[Optimizer],
    groups: list[dict[str, Any]],
    tuned: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Optimizer:
    """Call the constructor with those of the `tuned` settings that it takes; the groups have their
    own."""
    parameters = signature(kind).parameters.values()
    takes_all = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters}
    taken = {name: value for name, value in tuned.items() if takes_all or name in names}
    try:
        return kind(groups, **taken, **options)
    except TypeError as error:
        raise TypeError(
            f"optimizer: {class_name(kind)} could not be constructed from the groups of the plan"
            f" and {', '.join([*taken, *options]) or 'nothing else'}: {error};"
            " plan.optimizer(name=value) passes what it needs"
        ) from error
