"""Content of an export: settings of groups of tensors, and initial sizes.

It has the names of the trainer's tensors, and no format yet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from orderone.core.errors import InputError
from orderone.optimizers.table import Eps, record_named
from orderone.planning.exports import names as tables

if TYPE_CHECKING:
    from orderone.planning.plan import Plan
    from orderone.planning.plan_row import Row

AS_IS = "as-is"
# own names: a function or a mapping from the plan's names; "as-is" if the trainer has these
Names: TypeAlias = (
    Callable[[str], str | Sequence[str]]
    | Mapping[str, str | Sequence[str]]
    | Literal["as-is"]
    | None
)
Betas: TypeAlias = tuple[float, ...] | None
# optimizer, lr, weight decay, eps, betas, convention of Muon's lr
Settings: TypeAlias = tuple[str, float, float, Eps, Betas, str | None]


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
    rows: dict[str, list[Row]] = {}
    for row in plan.rows:
        for name in trainer_names[row.name]:
            rows.setdefault(name, []).append(row)
    groups: dict[Settings, list[str]] = {}
    init: dict[str, float] = {}
    for name, held in list(rows.items()):
        differing = _differing(held)
        if differing and all(len(trainer_names[row.name]) > 1 for row in held):
            notes.append(_left_out(name, held))
            del rows[name]
            continue
        if differing:
            _refuse_packed(name, held, differing)
        if held[0].trained:
            groups.setdefault(_settings(held[0]), []).append(name)
        if len({row.init_std for row in held}) == 1:
            init[name] = held[0].init_std
        else:
            notes.append(f"init: {name} holds {_listed(held)}, with different initial sizes")
    made = [Group(tuple(names), *settings) for settings, names in groups.items()]
    return Content(tuple(made), tuple(rows), init, tuple(notes))


def _settings(row: "Row") -> Settings:
    return (row.optimizer, row.lr, row.weight_decay, row.eps, row.betas, row.convention)


def _differing(rows: "Sequence[Row]") -> list[str]:
    """Return the settings in which tensors differ that the trainer packs into one."""
    names = ("trained", "optimizer", "lr", "weight_decay", "eps", "betas", "convention")
    first = rows[0]
    if not any(row.trained for row in rows):
        return []
    return [name for name in names if any(getattr(first, name) != getattr(r, name) for r in rows)]


def _left_out(name: str, rows: "Sequence[Row]") -> str:
    return (
        f"{name} is left out: it would hold {_listed(rows)}, which have different settings. Build"
        " the model of the trainer so that it keeps them apart"
    )


def _listed(rows: "Sequence[Row]") -> str:
    return ", ".join(row.name for row in rows)


def _trainer_names(
    plan: "Plan", target: str, own_names: Names
) -> tuple[dict[str, Sequence[str]], list[str]]:
    """Return the trainer's names of every tensor of the plan, and notes."""
    unchanged: dict[str, Sequence[str]] = {row.name: (row.name,) for row in plan.rows}
    if own_names == AS_IS:
        return unchanged, []
    if own_names is not None:
        return {row.name: _own_name(row.name, own_names) for row in plan.rows}, []
    if target == "nemo":
        return {row.name: tables.nemo_names(row.name) for row in plan.rows}, []
    experts = {row.name: row.shape[0] if len(row.shape) == 3 else 1 for row in plan.rows}
    families = tables.FAMILIES.get(target, ())
    for family in families:
        renamed = family.renamed(experts)
        if renamed is not None:
            return dict(renamed), []
    if not families or tables.are_trainer_names(list(unchanged), target):
        return unchanged, []
    unknown = _undocumented(list(unchanged), target)
    may_have_others = target in tables.OTHER_MODELS or tables.has_known_layers(unchanged, target)
    if target in tables.SILENT and may_have_others:
        _refuse_names(target, unknown)
    if target in tables.SILENT:
        behaviour = "with a pipeline or in its own DDP it ignores patterns that match nothing"
    else:
        behaviour = "it refuses patterns that match nothing"
    note = (
        f"the names are those of the model: {target} has no documented names for"
        f" {unknown}. If {target} renames tensors of this model, pass names=; {behaviour}"
    )
    return unchanged, [note]


def _undocumented(names: Sequence[str], target: str) -> str:
    """Return a tensor that no family of models of the trainer has."""
    for name in names:
        if all(family.renamed({name: 1}) is None for family in tables.FAMILIES[target]):
            return name
    return names[0]


def _refuse_names(target: str, unknown: str) -> None:
    raise InputError(
        f"names: expected the names that {target} gives to the tensors of this model, and there are"
        f" no documented ones for {unknown}. {target} does not refuse patterns that match nothing:"
        " all tensors would train with the same settings. If its model has the names of the planned"
        " one, pass names='as-is'; otherwise a function or a mapping from these names to its own",
        "export-names",
        argument="names",
    )


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


def _refuse_packed(name: str, rows: "Sequence[Row]", different: Sequence[str]) -> None:
    first = rows[0]
    second = next(row for row in rows if _settings(row) != _settings(first) or not row.trained)
    raise InputError(
        f"{name}: this tensor of the trainer joins {first.name} ({_values(first, different)}) and"
        f" {second.name} ({_values(second, different)}); expected the same"
        f" {' and '.join(different)} for both",
        "export-packed",
        argument="target",
    )


def _values(row: "Row", settings: Sequence[str]) -> str:
    values: list[str] = []
    for setting in settings:
        value = getattr(row, setting)
        values.append(f"{value:.3g}" if isinstance(value, float) else str(value))
    return ", ".join(values)
