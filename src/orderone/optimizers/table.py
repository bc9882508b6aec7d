"""Table of all known optimizers, one record for each, and lookups by name or class."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from inspect import Parameter, signature, unwrap
from typing import Any, TypeAlias, cast

from torch.optim import Optimizer

from orderone.core.errors import InputError, one_of
from orderone.optimizers.adafactor import ADAFACTOR
from orderone.optimizers.adagrad import ADAGRAD
from orderone.optimizers.adam import ADAM, ADAMW
from orderone.optimizers.combined import CombinedOptimizer
from orderone.optimizers.lion import LION
from orderone.optimizers.muon import CONVENTION, MUON, REST, Muon, takes_matrices
from orderone.optimizers.muon_rates import convention_name
from orderone.optimizers.nadam import NADAM
from orderone.optimizers.record import (
    Algorithm,
    Eps,
    TensorScale,
    check_closure,
    class_name,
    default_of,
    label,
    takes_keyword,
)
from orderone.optimizers.registry import instance_defaults, registered, registered_name
from orderone.optimizers.rmsprop import RMSPROP
from orderone.optimizers.sgd import SGD
from orderone.optimizers.update import Options, Update
from orderone.theory.exponents.laws import UpdateLaw
from orderone.theory.exponents.updates import has_law
from orderone.torch_compat import step_post_hook_registry, step_pre_hook_registry

__all__ = [
    "ALGORITHMS",
    "CLASSES",
    "FUSED",
    "REST",
    "Algorithm",
    "Eps",
    "TensorScale",
    "UserOptimizer",
    "algorithm",
    "changes_step",
    "check_options",
    "class_name",
    "construct",
    "default_of",
    "find_record",
    "label",
    "label_of",
    "law_name",
    "name_in_label",
    "nearest_record",
    "record_for",
    "record_named",
    "stacked_update",
    "takes_keyword",
    "with_convention",
]

_RECORDS = (SGD, ADAM, ADAMW, ADAFACTOR, MUON, LION, RMSPROP, NADAM, ADAGRAD)

ALGORITHMS: dict[str, Algorithm] = {record.name: record for record in _RECORDS}
CLASSES: dict[str, type[Optimizer]] = {record.name: record.torch_class for record in _RECORDS}
FUSED = tuple(record.name for record in _RECORDS if record.fused)

# a class of the user, perhaps with options
UserOptimizer: TypeAlias = type[Optimizer] | partial[Optimizer]

_BY_CLASS: dict[type[Optimizer], Algorithm] = {record.torch_class: record for record in _RECORDS}
_BY_CLASS[Muon] = MUON
_ALIASES = {"sign": "lion"}  # name of an update law in `theory`


def algorithm(optimizer: object) -> Algorithm:
    """Return the record of an optimizer: its name, its class, or an instance.

    A class may come with options, as functools.partial(AdamW, betas=(0.9, 0.95)); "muon:spectral"
    is Muon with this convention of its learning rate. A subclass of a known class gets the update
    law of the nearest known class. Any other class must be registered, even if it has the name of a
    known one: its update law is not known.
    """
    if isinstance(optimizer, str) and optimizer.endswith(")"):
        raise InputError(
            f"optimizer: {optimizer!r} is the label of a class; pass the class itself",
            argument="optimizer",
        )
    optimizer = with_convention(optimizer)
    if isinstance(optimizer, CombinedOptimizer):  # its first part names it
        optimizer = next(iter(optimizer.parts.values()))
    if isinstance(optimizer, Optimizer):
        optimizer = type(optimizer)
    if isinstance(optimizer, partial):
        return _with_options(optimizer)
    if not isinstance(optimizer, type):
        return _by_name(optimizer)
    record = nearest_record(optimizer)
    if record is None:
        if issubclass(optimizer, Optimizer):
            check_closure(optimizer)
        message = (
            f"optimizer: the update law of {class_name(optimizer)} is unknown; expected one of"
            f" {', '.join(ALGORITHMS)}, one of their classes, a subclass, or a class that was"
            f" registered with its law: orderone.optimizers.register({optimizer.__name__},"
            ' law="adam"), or "sign", "sgd", "spectral", or an UpdateLaw'
        )
        raise InputError(message, "unknown-update-law", argument="optimizer")
    if optimizer is record.torch_class:
        return record
    return _with_defaults_of(optimizer, record)


def _by_name(optimizer: object) -> Algorithm:
    name = _ALIASES.get(str(optimizer).lower(), optimizer)
    if isinstance(name, str) and name.lower() not in ALGORITHMS and has_law(name):
        message = (
            f"optimizer: torch has no class for {name!r}; register the class of your package"
            f" with this law, orderone.optimizers.register(Class, law={name!r}), and pass the"
            " class"
        )
        raise InputError(message, "unknown-name", argument="optimizer")
    return ALGORITHMS[one_of(name, ALGORITHMS, "optimizer")]


def with_convention(optimizer: object) -> object:
    """Return torch.optim.Muon with a convention of lr for "muon:spectral"; others as they are."""
    if not isinstance(optimizer, str) or ":" not in optimizer or optimizer.endswith(")"):
        return optimizer
    name, _, convention = optimizer.partition(":")
    if name.lower() != MUON.name:
        raise InputError(
            f"optimizer: expected a convention for muon only, such as muon:spectral, got"
            f" {optimizer!r}",
            "unknown-name",
            argument="optimizer",
        )
    return partial(MUON.torch_class, **{CONVENTION: convention_name(convention, "optimizer")})


def _with_defaults_of(user_class: type[Optimizer], record: Algorithm) -> Algorithm:
    """Return the record for a subclass, with the defaults of its constructor."""
    in_instance = instance_defaults(user_class)
    defaults: dict[str, Any] = {}
    for name in ("lr", "weight_decay", "eps"):
        default = default_of(user_class, name)
        if default is None:
            default = in_instance.get(name)
        if isinstance(default, type(getattr(record, name))):
            defaults[name] = default
    if record.torch_class is MUON.torch_class and not issubclass(user_class, Muon):
        defaults["takes"] = takes_matrices  # torch's class refuses stacks of matrices
    return replace(record, user_class=user_class, **{**record.changes(in_instance), **defaults})


def _with_options(call: "partial[Optimizer]") -> Algorithm:
    """Return the record of a class with options; lr, weight_decay and eps become defaults."""
    if call.args:
        raise InputError(
            "optimizer: expected functools.partial with keywords only, got positional arguments",
            argument="optimizer",
        )
    record = algorithm(call.func)
    options = dict(call.keywords)
    record.check_options(options)
    defaults: dict[str, Any] = {}
    for name in ("lr", "weight_decay", "eps"):
        if name == "eps":
            setting = record.eps_name
        else:
            setting = name
        if setting in options:
            defaults[name] = options.pop(setting)
    if "decoupled_weight_decay" in options:
        defaults["coupled_decay"] = not options["decoupled_weight_decay"]
    return replace(record, options=options, **{**record.changes(options), **defaults})


def nearest_record(kind: type) -> Algorithm | None:
    """Return the record of the nearest class, known or registered, that `kind` is or inherits."""
    for base in kind.__mro__:
        record = registered(base) or _BY_CLASS.get(base)
        if record is not None:
            return record
    return None


def find_record(name: str) -> Algorithm | None:
    """Return the record of a name in a plan; None if its class is not registered here."""
    return ALGORITHMS.get(name) or registered_name(name)


def record_named(name: str) -> Algorithm:
    """Return the record of a name in a plan: a known optimizer, or a registered class."""
    record = find_record(name)
    if record is None:
        message = (
            f"optimizer: {name} is not registered in this process; import the class and call"
            " orderone.optimizers.register(...) first"
        )
        raise InputError(message, "unknown-update-law", argument="optimizer")
    return record


# --- stacked updates ------------------------------------------------------------------------------

# entries of a class body that do not change what its instances do
_HARMLESS = {
    "__init__", "__doc__", "__module__", "__qualname__", "__dict__", "__weakref__",
    "__annotations__", "__static_attributes__", "__firstlineno__", "__slots__",
}  # fmt: skip


def stacked_update(kind: type[Optimizer]) -> type[Update] | None:
    """Return the stacked form of an optimizer's update, or None if there is none.

    A subclass that overrides only `__init__` makes the updates of its parent. Any other subclass
    may make other updates.
    """
    for base in kind.__mro__:
        record = registered(base) or _BY_CLASS.get(base)
        if record is not None:
            return record.stacked
        if not _only_initializes(base):
            return None
    return None


def _only_initializes(kind: type) -> bool:
    if type(kind) is not type:
        return False
    for name, value in vars(kind).items():
        if name in _HARMLESS:
            continue
        # torch wraps `step` of the class of the first instance, to profile it
        inherited = getattr(super(kind, kind), name, None)
        is_wrapper = name == "step" and getattr(value, "hooked", False)
        if not is_wrapper or unwrap(value) is not unwrap(cast(Callable[..., Any], inherited)):
            return False
    return True


def changes_step(optimizer: Optimizer) -> bool:
    """Return whether an instance has hooks, or a `step` other than that of its class."""
    hooks = (step_pre_hook_registry(optimizer), step_post_hook_registry(optimizer))
    return "step" in vars(optimizer) or any(hooks)


# --- names ----------------------------------------------------------------------------------------


def record_for(optimizer: Algorithm, is_hidden: bool, shape: tuple[int, ...]) -> Algorithm:
    """Return the record of the optimizer that takes a tensor: this one, or its `rest`.

    `is_hidden` says whether the tensor is a hidden matrix, or a stack of hidden matrices.
    """
    if optimizer.rest is None or optimizer.takes(is_hidden, shape):
        return optimizer
    return ALGORITHMS[optimizer.rest]


def law_name(optimizer: str) -> str | UpdateLaw:
    """Return the update law of an optimizer; the name of a law is returned as is."""
    if has_law(optimizer) and optimizer not in ALGORITHMS:
        return optimizer
    return record_named(optimizer).law


def check_options(optimizer: Optimizer) -> None:
    """Raise an InputError if an option changes the law of the updates, also as a default."""
    if isinstance(optimizer, CombinedOptimizer):
        for part in optimizer.parts.values():
            check_options(part)
        return
    record = nearest_record(type(optimizer))
    if record is not None:
        for group in optimizer.param_groups:
            record.check_options(group)


def label_of(optimizer: object) -> str:
    """Return the label of a user's optimizer: a name or a class, known or not."""
    if isinstance(optimizer, type) and nearest_record(optimizer) is None:
        return class_name(optimizer)
    if isinstance(optimizer, (type, partial)):
        return algorithm(optimizer).label
    return str(optimizer)


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
    parameters = _arguments(kind)
    takes_all = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    taken = {name: value for name, value in tuned.items() if takes_all or name in parameters}
    try:
        return kind(groups, **taken, **options)
    except TypeError as error:
        raise TypeError(
            f"optimizer: {class_name(kind)} could not be constructed from the groups of the plan"
            f" and {', '.join([*taken, *options]) or 'no options'}: {error}; pass arguments of its"
            " constructor with plan.optimizer(name=value)"
        ) from error


@lru_cache(maxsize=64)  # a check constructs one for each model; classes of users come and go
def _arguments(kind: type[Optimizer]) -> Mapping[str, Parameter]:
    """Return the arguments of the constructor, by name."""
    return signature(kind).parameters
