"""Content of an export: settings of groups of tensors, and initial sizes.

It has the names of the trainer's tensors, and no format yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from orderone.core.errors import InputError
from orderone.optimizers.table import Eps, record_named
from orderone.planning.exports import names as tables

if TYPE_CHECKING:
    from orderone.planning.plan import Plan, Row

# own names: a function or a mapping from the plan's names
Names: TypeAlias = Callable[[str], str | Sequence[str]] | Mapping[str, str | Sequence[str]] | None
Betas: TypeAlias = tuple[float, ...] | None
# optimizer, lr, weight decay, eps, betas, convention of Muon's lr
Settings: TypeAlias = tuple[str, float, float, Eps, Betas, str | None]

TABLES: Mapping[str, tables.Table] = {
    "torchtitan": tables.TORCHTITAN,
    "megatron": tables.MEGATRON,
    "olmo-core": tables.OLMO_CORE,
}


@dataclass(frozen=True)
class Group:
    """Tensors with the same settings."""

    names: tuple[str, ...]
    optimizer: str
    lr: float
    weight_decay: float
    eps: Eps
    betas: Betas = None  # None: those of the base
    convention: str | None = None  # of Muon's learning rate, if it is not torch's default

    @property
    def averages(self) -> dict[str, float | tuple[float, ...]]:
        """Betas of the optimizer's averages as options of the optimizer."""
        if self.betas is None:
            return {}
        return record_named(self.optimizer).with_betas(self.betas)


@dataclass(frozen=True)
class Content:
    """Groups of trained tensors, all names, initial sizes (name -> standard deviation)."""

    groups: tuple[Group, ...]
    names: tuple[str, ...]
    init: Mapping[str, float]
    notes: tuple[str, ...]


def content(plan: "Plan", target: str, own_names: Names) -> Content:
    """Return the content of a plan with the names of the trainer `target`."""
    trainer_names, notes = _trainer_names(plan, target, own_names)
    settings: dict[str, Settings] = {}
    holders: dict[str, Row] = {}
    init: dict[str, float] = {}
    for row in plan.rows:
        for name in trainer_names[row.name]:
            here = (row.optimizer, row.lr, row.weight_decay, row.eps, row.betas, row.convention)
            if row.trained and settings.setdefault(name, here) != here:
                _refuse_packed(name, holders[name], row)
            holders[name] = row
            init[name] = row.init_std
    groups: dict[Settings, list[str]] = {}
    for name, here in settings.items():
        groups.setdefault(here, []).append(name)
    made: list[Group] = []
    for here, group_names in groups.items():
        made.append(Group(tuple(group_names), *here))
    return Content(tuple(made), tuple(init), init, notes)


def _trainer_names(
    plan: "Plan", target: str, own_names: Names
) -> tuple[dict[str, Sequence[str]], tuple[str, ...]]:
    """Return the trainer's names of every tensor of the plan, and notes."""
    unchanged: dict[str, Sequence[str]] = {row.name: (row.name,) for row in plan.rows}
    if own_names is not None:
        return {row.name: _own_name(row.name, own_names) for row in plan.rows}, ()
    if target not in TABLES:
        return unchanged, ()
    mapped: dict[str, Sequence[str]] = {}
    for row in plan.rows:
        if len(row.shape) == 3:
            experts = row.shape[0]
        else:
            experts = 1
        new_names = tables.renamed(row.name, experts, TABLES[target])
        if new_names is None:
            note = (
                f"the names are those of the model: {target} has no documented names for"
                f" {row.name}. If {target} renames tensors of this model, pass names="
            )
            return unchanged, (note,)
        mapped[row.name] = new_names
    return mapped, ()


def _own_name(name: str, own_names: Names) -> Sequence[str]:
    if isinstance(own_names, Mapping):
        trainer_names = own_names.get(name)
    else:
        trainer_names = None
    if callable(own_names):
        trainer_names = own_names(name)
    if not trainer_names:
        raise InputError(
            f"names: expected a name of the trainer for every tensor, got none for {name}",
            argument="names",
        )
    if isinstance(trainer_names, str):
        return (trainer_names,)
    return tuple(trainer_names)


def _refuse_packed(name: str, first: "Row", second: "Row") -> None:
    different: list[str] = []
    for setting in ("optimizer", "lr", "weight_decay", "eps", "betas"):
        if getattr(first, setting) != getattr(second, setting):
            different.append(setting)
    raise InputError(
        f"{name}: expected one value of {' and '.join(different)}, got those of {first.name}"
        f" ({_values(first, different)}) and {second.name} ({_values(second, different)}), which"
        " this tensor of the trainer holds together",
        "export-packed",
        argument="target",
    )


def _values(row: "Row", settings: Sequence[str]) -> str:
    values: list[str] = []
    for setting in settings:
        value = getattr(row, setting)
        values.append(f"{value:.3g}" if isinstance(value, float) else str(value))
    return ", ".join(values)
