"""Record of an optimizer: everything that the library knows about it.

Planning reads its defaults and how eps scales, the coordinate check its update law, and stacked
training its update. To add an optimizer, write a file like `rmsprop.py` and add its record to
`table.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any, TypeAlias

import torch
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.optimizers.update import Options, Update
from orderone.rules.axes import Memory
from orderone.theory.exponents.laws import UpdateLaw
from orderone.theory.exponents.updates import update_law

Eps: TypeAlias = float | tuple[float | None, float] | None
Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class TensorScale:
    """Size of a tensor and of its gradient, relative to their counterparts in the base."""

    shape: Shape
    base_shape: Shape
    dtype: torch.dtype
    std: float  # factor of the initial size
    gradient: float  # factor of the gradient's entries


def entrywise_eps(eps: Any, scale: TensorScale) -> Eps:
    """Scale an eps that is added to a running size of the gradient's entries."""
    return eps * scale.gradient


def takes_every_tensor(is_hidden: bool, shape: Shape) -> bool:
    return True


def no_rate_factor(shape: Shape) -> float:
    return 1.0


def any_options(options: Options) -> None:
    return None


def no_changes(options: Options) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Algorithm:
    """An optimizer: its update law in theory, its torch class with defaults, its stacked update.

    `law` names an entry of `orderone.theory.exponents.OPTIMIZERS`, or is a law that is not in it. A
    name also says how weight decay enters: "adam" adds a penalty to a gradient that is normalized
    afterwards, "adamw" decouples it.
    """

    name: str
    law: str | UpdateLaw
    torch_class: type[Optimizer]
    stacked: type[Update] | None  # None: members are trained one after another
    lr: float | None  # defaults of the constructor; None if it has none
    weight_decay: float
    eps: Eps = None
    eps_name: str = "eps"  # setting of its groups that holds eps
    eps_power: float = 1.0  # eps is compared with this power of the gradient's size
    fused: bool = False  # torch has one kernel for the whole update, on the CPU and on CUDA
    # the optimizer that `decoupled_weight_decay` turns this one into
    other_decay: str | None = None
    # arguments: whether the tensor is a hidden matrix, or a stack of them; its shape
    takes: Callable[[bool, Shape], bool] = takes_every_tensor
    rest: str | None = None  # optimizer of the tensors that this one does not take
    scaled_eps: Callable[[Any, TensorScale], Eps] = entrywise_eps
    rate_factor: Callable[[Shape], float] = no_rate_factor  # factor that its step applies to lr
    check_options: Callable[[Options], None] = any_options  # options of a group
    # fields of this record that options of the constructor change
    changes: Callable[[Options], Mapping[str, Any]] = no_changes
    convention: str | None = None  # of Muon's learning rate, if it is not torch's default
    user_class: type[Optimizer] | None = None  # a subclass, or a registered class
    # keywords of the constructor, from functools.partial
    options: Mapping[str, Any] = field(default_factory=dict)
    # whether decay is added to the gradient; None: the name of the law says it
    coupled_decay: bool | None = None
    decay_is_known: bool = True  # False: weight decay cannot be planned
    takes_complex: bool = True  # its step accepts complex tensors
    takes_sparse: bool = False  # its step accepts sparse gradients
    # how it remembers gradients, for rules of batch size and tokens; None: there is no such rule
    memory: Memory | None = None
    averages: str | None = None  # setting with the betas of its averages: "betas" or "alpha"

    @property
    def label(self) -> str:
        """Its name, with the user's class if there is one: `adamw (my_package.MyAdam)`."""
        return label(self.name, self.user_text)

    @property
    def user_text(self) -> str | None:
        """The user's class and options as text; None for a class of torch without options."""
        if self.user_class is None and not self.options:
            return None
        text = class_name(self.user_class or self.torch_class)
        for name, value in self.options.items():
            text += f", {name}={value!r}"
        return text

    @property
    def update_law(self) -> UpdateLaw:
        """The exponents of its updates."""
        return update_law(self.law)

    @property
    def decouples_decay(self) -> bool:
        """Whether weight decay is decoupled from the gradient."""
        if self.coupled_decay is not None:
            return not self.coupled_decay
        return self.law != "adam"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of this optimizer and of the one that takes the other tensors."""
        if self.rest is None:
            return (self.name,)
        return (self.name, self.rest)

    @property
    def betas(self) -> tuple[float, ...] | None:
        """The betas of its averages: the user's, or the defaults of the constructor."""
        if self.averages is None:
            return None
        value = self.options.get(self.averages)
        if value is None and self.user_class is not None:
            value = default_of(self.user_class, self.averages)
        if value is None:
            value = default_of(self.torch_class, self.averages)
        if isinstance(value, (tuple, list)):
            return tuple(float(beta) for beta in value)
        return None if value is None else (float(value),)

    def with_betas(self, betas: tuple[float, ...] | None) -> dict[str, float | tuple[float, ...]]:
        """Return the setting of a group that holds these betas; empty if there is none."""
        if self.averages is None or betas is None:
            return {}
        first, *others = betas
        return {self.averages: betas if others else first}

    def has_setting(self, name: str) -> bool:
        """Return whether the constructor takes this keyword."""
        return takes_keyword(self.user_class or self.torch_class, name)


def takes_keyword(kind: type, name: str) -> bool:
    """Return whether the constructor of a class, or of one that it inherits from, has a keyword."""
    for base in kind.__mro__:
        if base is Optimizer:
            return False
        if "__init__" in vars(base) and name in signature(base).parameters:
            return True
    return False


def check_closure(kind: type[Optimizer]) -> None:
    """Raise an InputError if `step` of an optimizer requires a closure."""
    closure = signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is Parameter.empty:
        message = (
            f"optimizer: {class_name(kind)}.step requires a closure that computes the loss again;"
            " expected an optimizer that makes one step from one backward pass, such as"
            " torch.optim.AdamW"
        )
        raise InputError(message, "needs-closure", argument="optimizer")


def default_of(kind: type, name: str) -> Any:
    """Return the default of a constructor's parameter, None if there is none."""
    parameter = signature(kind).parameters.get(name)
    if parameter is None or parameter.default is Parameter.empty:
        return None
    return parameter.default


def class_name(kind: type) -> str:
    """Return the name under which users import a class: torch.optim.AdamW, not
    torch.optim.adamw.AdamW."""
    if kind.__module__.startswith("torch.optim."):
        module = "torch.optim"
    else:
        module = kind.__module__
    return f"{module}.{kind.__qualname__}"


def label(name: str, user_class: str | None) -> str:
    """Return the name of an optimizer, with the user's class if there is one."""
    if user_class is None or user_class == name:
        return name
    return f"{name} ({user_class})"
