"""Optimizers that users register: any `torch.optim.Optimizer` with the law of its updates.

A plan needs to know one thing about an optimizer: how the size of its updates depends on the size
of gradients and weights, and on the width. This is its update law. A registered class is then used
as it is in `plan`, `coord_check`, `sweep` and `train`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Parameter, signature
from typing import Annotated, Any, TypeAlias, cast

import torch
from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError, one_of
from orderone.core.inputs import Count, Name, Number, UserInput
from orderone.optimizers.blocks import (
    UNCUT,
    BlockFactor,
    BlockSize,
    MatrixEps,
    SpectralEps,
    block_factor,
)
from orderone.optimizers.muon import REST, takes_matrices
from orderone.optimizers.record import (
    Algorithm,
    Shape,
    check_closure,
    class_name,
    default_of,
    no_rate_factor,
    takes_keyword,
)
from orderone.optimizers.update import Update
from orderone.rules.axes import Memory
from orderone.seeding import seeded
from orderone.theory.exponents.laws import UpdateLaw
from orderone.theory.exponents.updates import OPTIMIZERS, has_law, update_law

LAWS: dict[str, UpdateLaw] = {
    "adam": OPTIMIZERS["adam"],
    "sign": OPTIMIZERS["sign"],
    "sgd": OPTIMIZERS["sgd"],
    "adafactor": OPTIMIZERS["adafactor"],
    "spectral": OPTIMIZERS["muon"],
}
EPS = "eps"
# names of eps, and the power of the gradient's size that it is compared with: `epsilon` in Dion's
# package, `matrix_eps` in Shampoo of pytorch-optimizer
EPS_POWERS = {EPS: 1.0, "epsilon": 1.0, "matrix_eps": 2.0}
_REGISTERED: dict[type[Optimizer], Algorithm] = {}
_BY_NAME: dict[str, Algorithm] = {}  # the latest class of each name
_SAME_DIRECTION = 0.99  # cosine between the effect of decoupled decay and the weights

OptimizerClass: TypeAlias = Annotated[type[Optimizer], UserInput]
Law: TypeAlias = Annotated[str | UpdateLaw, UserInput]
RateFactor: TypeAlias = Annotated[Callable[[Shape], float], UserInput]
StackedUpdate: TypeAlias = Annotated[type[Update], UserInput]


def register(
    optimizer: OptimizerClass,
    law: Law,
    *,
    decoupled_decay: bool | None = None,
    hidden_only: bool | None = None,
    rate_factor: RateFactor | None = None,
    block_size: BlockSize | None = None,
    max_dim: Count | None = None,
    stacked: StackedUpdate | None = None,
    lr: Number | None = None,
    weight_decay: Number | None = None,
    memory: Name | None = None,
) -> None:
    """Make a class of optimizers known by the law of its updates.

    `optimizer=` of `plan`, `coord_check` and `sweep` then takes the class. Its subclasses inherit
    the law. A subclass of a known optimizer needs no registration; registering it replaces the
    inherited law.

    Args:
        optimizer: Subclass of `torch.optim.Optimizer` whose constructor takes parameter groups and
            `lr`, and whose `step` needs no closure.
        law: "adam" (entries of updates have size lr), "sign" (the same), "sgd" (updates are
            proportional to the gradient), "adafactor" (updates have the size of the weights times
            lr), "spectral" (updates are orthogonalized, as in Muon), a name of
            `theory.exponents` such as "soap" or "shampoo-1/2", or an `UpdateLaw`.
        decoupled_decay: Whether `weight_decay` shrinks weights directly (AdamW), and is not added
            to the gradient (Adam). By default, a few steps on a small tensor tell.
        hidden_only: Whether the optimizer takes only hidden matrices, and AdamW takes the other
            tensors. By default this holds for spectral laws, as for torch.optim.Muon.
        rate_factor: Function of a tensor's shape that returns the factor by which `step`
            multiplies lr, if it depends on the shape. The plan divides by it. For a relative of
            Muon, this is `orderone.optimizers.muon_factor` or a part of it.
        block_size: Size of the blocks into which SOAP or Shampoo cuts the sides of a matrix that it
            preconditions: both, or one for laws that end in "-in" or "-out". A pair has the sizes
            for rows and columns, None for a side that is not cut.
        max_dim: Longest side of a matrix that SOAP preconditions.
        stacked: The same update for many members at once, a subclass of
            `orderone.optimizers.update.Update`. Without it, a sweep trains one member after
            another.
        lr: Default learning rate, if it is not that of the constructor.
        weight_decay: Default weight decay, if it is not that of the constructor.
        memory: How it remembers gradients, for rules of batch size and tokens: "averages" if the
            two `betas` are those of averages of gradients and of their squares, as in Adam;
            "momentum" if gradients are averaged over a fixed number of steps. By default, a plan
            with batch= or tokens= refuses the optimizer.
    """
    kind = _checked_class(optimizer)
    exact_law = _read_law(law)
    _check_stacked(stacked)
    blocks: BlockFactor | None = None
    if block_size is not None or max_dim is not None:
        _refuse_two_factors(rate_factor)
        blocks = block_factor(law, exact_law, block_size, max_dim)
    if decoupled_decay is None:
        decoupled_decay = decouples_decay(kind)
    if hidden_only is None:
        hidden_only = exact_law.spectral
    coupled = None if decoupled_decay is None else not decoupled_decay
    eps_name, eps = _eps_setting(kind)
    record = Algorithm(
        name=class_name(kind),
        law=_named(exact_law, bool(coupled)),
        torch_class=kind,
        stacked=stacked,
        lr=_default(kind, "lr") if lr is None else float(lr),
        weight_decay=_default(kind, "weight_decay") or 0.0,
        eps=eps,
        eps_name=eps_name,
        eps_power=EPS_POWERS[eps_name],
        rate_factor=rate_factor or blocks or no_rate_factor,
        user_class=kind,
        coupled_decay=coupled,
        decay_is_known=coupled is not None or exact_law.gradient == 1,
    )
    if weight_decay is not None:
        record = replace(record, weight_decay=float(weight_decay))
    if memory is not None:
        record = _with_memory(record, memory)
    if hidden_only:
        record = replace(record, takes=takes_matrices, rest=REST)
    remember(_with_scaled_eps(record, exact_law, blocks))


def _refuse_two_factors(rate_factor: object) -> None:
    if rate_factor is not None:
        raise InputError(
            "rate_factor: pass either the factor of the shape, or block_size and max_dim,"
            " from which it follows",
            argument="rate_factor",
        )


def _with_scaled_eps(record: Algorithm, law: UpdateLaw, blocks: BlockFactor | None) -> Algorithm:
    """Return the record; add the size that eps is compared with, if the law acts on matrices."""
    if record.eps_power == 2:
        cuts = UNCUT if blocks is None else blocks.cuts
        return replace(record, scaled_eps=MatrixEps(cuts))
    if law.spectral:
        return replace(record, scaled_eps=SpectralEps(law, blocks))
    return record


def _check_stacked(stacked: object) -> None:
    if stacked is not None and not (isinstance(stacked, type) and issubclass(stacked, Update)):
        raise InputError(
            f"stacked: expected a subclass of orderone.optimizers.update.Update, got {stacked!r}",
            "wrong-type",
            argument="stacked",
        )


def _with_memory(record: Algorithm, memory: Name) -> Algorithm:
    """Return the record with its memory; averages need two betas."""
    kind = Memory(one_of(memory, tuple(Memory), "memory"))
    if kind == Memory.MOMENTUM:
        return replace(record, memory=kind)
    averaging = replace(record, memory=kind, averages="betas")
    if averaging.betas is None or len(averaging.betas) != 2:
        raise InputError(
            f"memory: 'averages' needs two betas among the arguments of {record.name}; pass"
            " memory='momentum', or leave memory out",
            argument="memory",
        )
    return averaging


def remember(record: Algorithm) -> None:
    """Add the record of a registered class; another process does so with records it receives."""
    _REGISTERED[record.torch_class] = record
    _BY_NAME[record.name] = record


def registered(kind: type) -> Algorithm | None:
    """Return the record of exactly this class, or None."""
    return _REGISTERED.get(kind)


def registered_name(name: str) -> Algorithm | None:
    """Return the record of the registered class with this full name, or None."""
    return _BY_NAME.get(name)


def _checked_class(kind: object) -> type[Optimizer]:
    if not isinstance(kind, type) or not issubclass(kind, Optimizer):
        raise InputError(
            f"optimizer: expected a subclass of torch.optim.Optimizer, got {kind!r}",
            "wrong-type",
            argument="optimizer",
        )
    takes_all = False
    for parameter in signature(kind).parameters.values():
        takes_all |= parameter.kind is Parameter.VAR_KEYWORD
    if not takes_all and not takes_keyword(kind, "lr"):
        raise InputError(
            f"optimizer: the constructor of {class_name(kind)} has no argument lr; a plan scales"
            " the learning rate, so an optimizer without one cannot follow it",
            argument="optimizer",
        )
    check_closure(kind)
    return kind


def _read_law(law: object) -> UpdateLaw:
    if isinstance(law, UpdateLaw):
        return law
    if isinstance(law, str) and has_law(law):
        return update_law(law)
    return LAWS[one_of(law, dict.fromkeys((*LAWS, *OPTIMIZERS)), "law")]


def _named(law: UpdateLaw, coupled: bool) -> str | UpdateLaw:
    """Return the name of a law in theory if it has one."""
    if law == OPTIMIZERS["adam"]:
        if coupled:
            return "adam"
        return "adamw"
    for name in ("sgd", "adafactor", "muon"):
        if law == OPTIMIZERS[name]:
            return name
    return law


# --- facts that a few steps tell ------------------------------------------------------------------


def _default(kind: type[Optimizer], name: str) -> float | None:
    """Return the default of a setting, if it is a number: from the signature or from an instance.

    A subclass may set a default that its signature does not show.
    """
    value = default_of(kind, name)
    if value is None and takes_keyword(kind, name):
        value = instance_defaults(kind).get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def _eps_setting(kind: type[Optimizer]) -> tuple[str, float | None]:
    """Return the setting of its groups that holds eps, and its default; None if there is none."""
    for name in EPS_POWERS:
        value = _default(kind, name)
        # an argument with another name may be one of the constructor alone
        if value is not None and (name == EPS or name in instance_defaults(kind)):
            return name, value
    return EPS, None


def instance_defaults(kind: type[Optimizer]) -> Mapping[str, Any]:
    """Return the defaults of an instance; empty if the constructor needs more than parameters."""
    try:
        make = cast("Callable[..., Optimizer]", kind)
        return dict(make([nn.Parameter(torch.zeros(2, 2))]).defaults)
    except Exception:  # the user's constructor may raise anything
        return {}


def decouples_decay(kind: type[Optimizer]) -> bool | None:
    """Return whether weight decay shrinks weights directly; None if this cannot be measured.

    With decoupled decay, steps with and without decay differ along the weights.
    """
    if not takes_keyword(kind, "weight_decay"):
        return True
    try:
        start = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
        with seeded(0, ()):  # some optimizers draw random numbers, such as Dion
            plain = _after_steps(kind, start, 0.0)
        with seeded(0, ()):
            decayed = _after_steps(kind, start, 0.1)
    except Exception:  # the user's code may raise anything
        return None
    change = decayed - plain
    if not change.isfinite().all() or not change.any():
        return None
    cosine = -float((change * start).sum() / (change.norm() * start.norm()))
    return cosine > _SAME_DIRECTION


def _after_steps(kind: type[Optimizer], start: torch.Tensor, decay: float) -> torch.Tensor:
    """Return a tensor after three steps with a fixed gradient."""
    p = nn.Parameter(start.clone())
    optimizer = kind([p], lr=1e-3, weight_decay=decay)  # pyright: ignore[reportCallIssue]
    set_training_mode(optimizer, True)
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(start.shape, generator=generator)
    for _ in range(3):
        p.grad = gradient.clone()
        optimizer.step()
    return p.detach()


# --- modes ----------------------------------------------------------------------------------------


def set_training_mode(optimizer: Optimizer, training: bool) -> None:
    """Call `train()` or `eval()` of an optimizer that has both, as those of `schedulefree`.

    Such an optimizer trains with other weights than those that it evaluates.
    """
    modes = [getattr(optimizer, name, None) for name in ("eval", "train")]
    if all(callable(mode) for mode in modes):
        modes[training]()  # pyright: ignore[reportOptionalCall]
    for part in getattr(optimizer, "parts", {}).values():
        set_training_mode(part, training)
