"""Table of all known optimizers, one record for each, and lookups by name or class."""

from dataclasses import replace
from functools import cache
from inspect import Parameter, signature
from typing import Any

from torch.optim import Optimizer

from orderone.core.errors import InputError, one_of
from orderone.optimizers.adafactor import ADAFACTOR
from orderone.optimizers.adagrad import ADAGRAD
from orderone.optimizers.adam import ADAM, ADAMW
from orderone.optimizers.lion import LION
from orderone.optimizers.muon import MUON, REST
from orderone.optimizers.nadam import NADAM
from orderone.optimizers.record import Algorithm, Eps, TensorScale, class_name, default_of, label
from orderone.optimizers.rmsprop import RMSPROP
from orderone.optimizers.sgd import SGD
from orderone.optimizers.update import Options, Update

__all__ = [
    "ALGORITHMS",
    "CLASSES",
    "FUSED",
    "REST",
    "UPDATES",
    "Algorithm",
    "Eps",
    "TensorScale",
    "algorithm",
    "class_name",
    "construct",
    "default_of",
    "known_name",
    "label",
    "label_of",
    "law_name",
    "name_in_label",
    "record_for",
]

_RECORDS = (SGD, ADAM, ADAMW, ADAFACTOR, MUON, LION, RMSPROP, NADAM, ADAGRAD)

ALGORITHMS: dict[str, Algorithm] = {record.name: record for record in _RECORDS}
CLASSES: dict[str, type[Optimizer]] = {record.name: record.torch_class for record in _RECORDS}
FUSED = tuple(record.name for record in _RECORDS if record.fused)

# Keys are exact classes: a subclass, or another class of the same name, may make other updates.
UPDATES: dict[type[Optimizer], type[Update]] = {
    record.torch_class: record.stacked for record in _RECORDS
}

_ALIASES = {"sign": "lion"}  # name of an update law in `theory`


def algorithm(optimizer: object) -> Algorithm:
    """Return the record of an optimizer's name or class.

    A subclass of a known class gets the update law of the nearest known class. Any other class is
    an error, even if it has the name of a known one: its update law is not known.
    """
    if isinstance(optimizer, str) and optimizer.endswith(")"):
        raise InputError(
            f"optimizer: {optimizer!r} is the label of a class; pass the class itself",
            argument="optimizer",
        )
    if not isinstance(optimizer, type):
        name = _ALIASES.get(str(optimizer).lower(), optimizer)
        return ALGORITHMS[one_of(name, ALGORITHMS, "optimizer")]
    name = known_name(optimizer)
    if name is None:
        message = (
            f"optimizer: the update law of {class_name(optimizer)} is unknown; expected one of"
            f" {', '.join(ALGORITHMS)}, one of their classes, or a subclass. If its updates are"
            " like those of a known optimizer, make the plan for that one and construct yours from"
            f" its groups: {optimizer.__name__}(plan.param_groups())"
        )
        raise InputError(message, "unknown-update-law", argument="optimizer")
    record = ALGORITHMS[name]
    if optimizer is record.torch_class:
        return record
    return _with_defaults_of(optimizer, record)


def _with_defaults_of(user_class: type[Optimizer], record: Algorithm) -> Algorithm:
    """Return the record for a subclass, with the defaults of its constructor."""
    defaults: dict[str, Any] = {}
    for name in ("lr", "weight_decay", "eps"):
        default = default_of(user_class, name)
        if type(default) is type(getattr(record, name)):
            defaults[name] = default
    return replace(record, user_class=user_class, **defaults)


def record_for(optimizer: Algorithm, is_hidden: bool, shape: tuple[int, ...]) -> Algorithm:
    """Return the record of the optimizer that takes a tensor: this one, or its `rest`."""
    if optimizer.rest is None or optimizer.takes(is_hidden, shape):
        return optimizer
    return ALGORITHMS[optimizer.rest]


def law_name(optimizer: str) -> str:
    """Return the update law of an optimizer; a name that is not an optimizer is returned as is."""
    if optimizer in ALGORITHMS:
        return ALGORITHMS[optimizer].law
    return optimizer


@cache
def known_name(kind: type) -> str | None:
    """Return the name of the nearest known class that `kind` is or inherits from."""
    names = {record.torch_class: record.name for record in _RECORDS}
    for base in kind.__mro__:
        if base in names:
            return names[base]
    return None


def label_of(optimizer: object) -> str:
    """Return the label of a user's optimizer: a name or a class, known or not."""
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
    tuned: Options,
    options: Options,
) -> Optimizer:
    """Call the constructor with those of the `tuned` settings that it accepts.

    They are defaults for groups that are added later; the groups of a plan have settings already.
    """
    parameters = signature(kind).parameters
    takes_all = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    taken = {name: value for name, value in tuned.items() if takes_all or name in parameters}
    try:
        return kind(groups, **taken, **options)
    except TypeError as error:
        raise TypeError(
            f"optimizer: {class_name(kind)} could not be constructed from the groups of the plan"
            f" and {', '.join([*taken, *options]) or 'no options'}: {error}; pass the arguments"
            " that it needs with plan.optimizer(name=value)"
        ) from error
