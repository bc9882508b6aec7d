"""`plan.export(target)`: a plan as patterns of names, in the format of another trainer."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from orderone.core.errors import InputError
from orderone.core.exact import count
from orderone.core.reals import real
from orderone.observe.inventory import clean
from orderone.optimizers.record import class_name
from orderone.planning.exports.content import Content, Names, content
from orderone.planning.exports.format import LOSSES, Base, Format, Values
from orderone.planning.exports.formats.groups import DeepSpeed, HuggingFace
from orderone.planning.exports.formats.megatron import Megatron
from orderone.planning.exports.formats.nemo import Nemo
from orderone.planning.exports.formats.olmo_core import OlmoCore
from orderone.planning.exports.formats.plain import Json, Yaml, rest
from orderone.planning.exports.formats.torchtitan import Torchtitan
from orderone.planning.exports.patterns import inside, numbers_matter, regex, template
from orderone.planning.exports.schedules import check_schedule

if TYPE_CHECKING:
    from orderone.planning.plan import Plan

FORMATS: Mapping[str, Format] = {
    "torchtitan": Torchtitan(),
    "megatron": Megatron(),
    "nemo": Nemo(),
    "olmo-core": OlmoCore(),
    "deepspeed": DeepSpeed(),
    "huggingface": HuggingFace(),
    "json": Json(),
    "yaml": Yaml(),
}


@dataclass(frozen=True)
class Export:
    """A plan in the format of a trainer. `print` it, `save` it, or `build` the trainer's objects.

    Attributes:
        target: Name of the trainer.
        data: The settings as plain data, in the fields of the trainer.
        init: Initial sizes: patterns with the standard deviation of the tensors that they match.
            No trainer reads them from such a file. Start from a checkpoint of `plan.apply()`, or
            initialize with these numbers.
        names: Names of all tensors in the trainer.
        notes: What else has to be known.
    """

    target: str
    data: Mapping[str, Any]
    init: Sequence[Mapping[str, Any]]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    _format: Format = field(default_factory=Json, repr=False, compare=False)

    def __str__(self) -> str:
        return self._format.text(dict(self.data))

    def __repr__(self) -> str:
        return f"<Export of {len(self.names)} tensors to {self.target}>"

    def save(self, path: str | PathLike[str]) -> None:
        """Write the text to a file."""
        Path(path).write_text(str(self))

    def build(self, model: nn.Module | None = None) -> object:
        """Return the objects that the trainer's own code takes; they need the trainer's package.

        `model` is the trainer's model; parameter groups of DeepSpeed and Hugging Face need it. For
        other trainers it is optional: an InputError says which tensor no pattern matches, or which
        one a pattern matches although the plan does not have it.
        """
        if model is not None:
            self._must_match(model)
        return self._format.build(dict(self.data), model)

    def _must_match(self, model: nn.Module) -> None:
        """Raise an InputError if a trained tensor of the model has no settings in the export."""
        names = self._format.names_in(model)
        found = self.settings(names)
        missing = self._without_settings(names, found)
        if missing:
            raise InputError(
                f"model: no pattern of the export matches {', '.join(missing[:3])}"
                f"{' ...' if missing[3:] else ''}; expected the tensors of the planned model. If"
                " the trainer names them differently, pass names= to plan.export",
                argument="model",
            )
        known = {template(name) for name in self.names}
        for name in found:
            if not known & {template(other) for other in _inner_names(name)}:
                raise InputError(
                    f"model: a pattern of the export matches {name}, which the planned model does"
                    " not have; plan the model that the trainer trains, or pass names= to"
                    " plan.export",
                    argument="model",
                )

    def _without_settings(self, names: Sequence[str], found: Mapping[str, Values]) -> list[str]:
        """Return the names that no pattern matches, among names of a model that may be wrapped.

        Where tensors without a pattern have settings, too, compare these with the plan.
        """
        settings = self.settings()
        missing: list[str] = []
        for name in names:
            planned = [settings[other] for other in _inner_names(name) if other in settings]
            if planned:
                matched = found.get(name) == planned[0]
            else:
                matched = name in found and not self._format.has_default
            if not matched:
                missing.append(name)
        return missing

    def check_schedule(self, schedule: object, steps: int = 1000) -> None:
        """Raise BrokenRatios if a schedule changes the ratios between the groups of the export.

        `schedule` is the trainer's scheduler, or a function of the largest learning rate of a
        group, the step and the number of steps. It is simulated on a copy for `steps` steps: pass
        the number of steps of your training.
        """
        rates = sorted({values.lr for values in self.settings().values()}, reverse=True)
        remedy = self._format.schedule_remedy
        check_schedule(schedule, rates, count(steps, "steps"), remedy)

    def settings(self, names: Collection[str] | None = None) -> dict[str, Values]:
        """Return what the trainer would read for every tensor: lr, weight_decay, eps by name."""
        return self._format.read(dict(self.data), self.names if names is None else names)


def export(
    plan: "Plan",
    target: str,
    *,
    allow_loss: Sequence[str] = (),
    names: Names = None,
    min_lr: float = 0.0,
) -> Export:
    """Return the plan in the format of a trainer; `Plan.export` documents the arguments."""
    if target not in FORMATS:
        raise InputError(
            f"target: expected one of {', '.join(FORMATS)}, got {target!r}", argument="target"
        )
    allowed = _read_allowed(allow_loss)
    chosen = FORMATS[target]
    made = content(plan, target, names)
    lost = _lost(plan, made, chosen)
    _refuse_losses({kind: why for kind, why in lost.items() if kind not in allowed}, target)
    base = _base(plan, made, _read_min_lr(min_lr, plan.settings.lr, target))
    init = _init(made)
    data = chosen.data(made, base)
    if chosen.holds >= set(LOSSES):
        data |= {"init": init, **rest(plan)}
        if plan.settings.user_class is not None:
            data |= {"class": plan.settings.user_class, "options": _plain(plan.user_options)}
    notes = [*made.notes, chosen.advice]
    notes += [f"left out: {kind} ({why})" for kind, why in lost.items()]
    by_number = [g for g in made.groups if numbers_matter(g.names, made.names)]
    if by_number and chosen.numbers_by_stage:
        notes.append(
            f"patterns contain numbers of layers, as {by_number[0].names[0]} does. With pipeline"
            " parallelism each stage counts its layers from 0, and the export is wrong there"
        )
    return Export(target, data, init, made.names, tuple(notes), chosen)


def _inner_names(name: str) -> list[str]:
    """Return what the name of a tensor may be in the model inside of wrappers."""
    return [*inside(name), *inside(clean(name))]


def _read_allowed(allow_loss: Sequence[str]) -> set[str]:
    """Return the names of what an export may leave out."""
    if isinstance(allow_loss, str):
        allow_loss = (allow_loss,)
    allowed = set(allow_loss)
    unknown = sorted(allowed - set(LOSSES))
    if unknown:
        raise InputError(
            f"allow_loss: expected some of {', '.join(LOSSES)}, got {', '.join(unknown)}",
            argument="allow_loss",
        )
    return allowed


def _read_min_lr(min_lr: float, lr: float, target: str) -> float:
    """Return the smallest learning rate; raise an InputError if the format has no place for it."""
    min_lr = real(min_lr, "min_lr", least=0, most=lr)
    if min_lr and not FORMATS[target].takes_min_lr:
        raise InputError(
            f"min_lr: groups of {target} have no smallest learning rate. {target} gets it from its"
            f" schedule: pass it there, and check it with export.check_schedule",
            argument="min_lr",
        )
    return min_lr


def _refuse_losses(refused: Mapping[str, str], target: str) -> None:
    """Raise an InputError if the format cannot hold something that must not be left out."""
    if refused:
        reasons = "; ".join(f"{kind} ({LOSSES[kind]}: {why})" for kind, why in refused.items())
        raise InputError(
            f"target: the format {target} cannot express {reasons}. Pass"
            f" allow_loss={tuple(refused)!r} to export the plan without this",
            "export-loss",
            argument="target",
        )


def _lost(plan: "Plan", made: Content, chosen: Format) -> dict[str, str]:
    """Return what the format cannot hold, with an example."""
    lost: dict[str, str] = {}
    eps = sorted({group.eps for group in made.groups if group.eps is not None}, key=str)
    if len(eps) > 1 and "eps" not in chosen.holds:
        lost["eps"] = f"{eps[0]} and {eps[-1]}"
    if plan.multipliers and "multipliers" not in chosen.holds:
        first = plan.multipliers[0]
        lost["multipliers"] = f"{first.value:.3g} at the {first.side} of {first.module}"
    for group in made.groups:
        if group.optimizer not in chosen.optimizers:
            lost["optimizer"] = f"{group.optimizer} for {group.names[0]}"
    if len({group.optimizer for group in made.groups}) > 1 and "optimizer" not in chosen.holds:
        lost.setdefault("optimizer", "several optimizers")
    betas = {group.betas for group in made.groups}
    if len(betas - {None}) > 1 and "betas" not in chosen.holds:
        lost["betas"] = ", ".join(str(pair) for pair in sorted(betas - {None}, key=str))
    averages = {name for group in made.groups for name in group.averages}
    if averages - {"betas"} and "betas" not in chosen.holds:
        lost["betas"] = f"{', '.join(averages)} of the optimizer"
    lost |= _lost_options(plan, chosen)
    packed = [row.name for row in plan.rows if row.blocks]
    if packed and "rows" not in chosen.holds:
        lost["rows"] = packed[0]
    return lost


def _lost_options(plan: "Plan", chosen: Format) -> dict[str, str]:
    """Return options and classes of the user that the format cannot hold."""
    settings = plan.settings
    if settings.user_class is None or chosen.holds >= set(LOSSES):
        return {}
    if plan.user_class is not None:
        return {"optimizer": f"the class {class_name(plan.user_class)}"}
    if not plan.user_options:  # a plan from a file
        return {"options": f"{settings.user_class}, of which a plan file has the name only"}
    options = _options(plan)
    unknown = [name for name in options if not chosen.takes(settings.optimizer, name)]
    if unknown:
        return {"options": ", ".join(unknown)}
    return {}


def _options(plan: "Plan") -> dict[str, Any]:
    """Return the options that the user passed with the optimizer's class, without betas."""
    return {name: value for name, value in plan.user_options.items() if name != "betas"}


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON holds them; other objects as their text."""
    plain: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, (tuple, list)):
            plain[name] = list(value)
        elif value is None or isinstance(value, (bool, int, float, str)):
            plain[name] = value
        else:
            plain[name] = str(value)
    return plain


def _base(plan: "Plan", made: Content, min_lr: float) -> Base:
    settings = plan.settings
    weight_decay = settings.weight_decay
    if not weight_decay:
        weight_decay = max((group.weight_decay for group in made.groups), default=0.0)
    betas = _common_betas(made) or plan.user_options.get("betas")
    return Base(
        optimizer=settings.optimizer,
        lr=settings.lr,
        weight_decay=weight_decay,
        min_lr=min_lr,
        betas=None if betas is None else (float(betas[0]), float(betas[1])),
        options=_options(plan),
    )


def _common_betas(made: Content) -> tuple[float, ...] | None:
    """Return the betas of the optimizer's averages, if the plan scales them for all tensors."""
    betas = {group.betas for group in made.groups if "betas" in group.averages}
    if len(betas) == 1:
        return betas.pop()
    return None


def _init(made: Content) -> list[dict[str, Any]]:
    """Return patterns with initial sizes."""
    by_size: dict[float, list[str]] = {}
    for name, std in made.init.items():
        by_size.setdefault(std, []).append(name)
    init: list[dict[str, Any]] = []
    for std, group_names in by_size.items():
        init.append({"pattern": regex(group_names, made.names), "init_std": std})
    return init
