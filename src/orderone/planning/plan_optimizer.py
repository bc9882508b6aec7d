"""The optimizer of a plan: torch's, or the class that the user passed, with the plan's groups."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.observe.inventory import unwrap
from orderone.optimizers.combined import CombinedOptimizer
from orderone.optimizers.muon import CONVENTION, class_for
from orderone.optimizers.registry import registered_name
from orderone.optimizers.table import CLASSES, check_options, class_name, construct, record_named
from orderone.planning import apply, schedule
from orderone.planning.optimizer_groups import check_conventions
from orderone.planning.param_groups import param_groups
from orderone.planning.plan_row import Row

if TYPE_CHECKING:
    from orderone.planning.plan import Plan


def make_optimizer(plan: "Plan", model: nn.Module | None, options: Mapping[str, Any]) -> Optimizer:
    """Return the optimizer for `model`, by default the plan's own."""
    _check_options(plan, options)
    options = {**plan.user_options, **options}
    if record_named(plan.settings.optimizer).rest is not None:
        made = _with_rest(plan, model, options)
    else:
        made = _single(plan, model, options)
    check_options(made)
    _must_decay_as_planned(made, plan)
    check_conventions(plan, made, model)
    if plan.user_class is not None and model is None:
        schedule.check(plan, made, None, None)  # its constructor may have made other groups
    if not plan.applied:
        apply.remind(plan, plan.bound() if model is None else unwrap(model), made)
    return made


def _check_options(plan: "Plan", options: Mapping[str, Any]) -> None:
    """Raise an InputError for options that the plan sets for each group."""
    names_of_eps = {row.eps_name for row in plan.rows}
    for name in ("lr", "weight_decay", "eps", *names_of_eps):
        if name in options:
            message = (
                f"optimizer: {name} differs between groups; pass it to the plan instead:"
                f" plan(..., {name}={options[name]!r})"
            )
            raise InputError(message, "setting-of-the-plan", argument=name)
    for name in options:
        for row in plan.rows:
            if row.betas is not None and record_named(row.optimizer).averages == name:
                message = (
                    f"optimizer: the plan scales {name} with batch size and tokens; pass the value"
                    " of the base to the plan instead:"
                    f" plan(..., optimizer=functools.partial(AdamW, {name}=...))"
                )
                raise InputError(message, "setting-of-the-plan", argument=name)


def _class_of(plan: "Plan") -> type[Optimizer]:
    """Return the class to construct; raise an InputError if it was not saved with the plan."""
    if plan.user_class is not None:
        return plan.user_class
    if plan.user_options:
        return CLASSES[plan.settings.optimizer]
    known = registered_name(plan.settings.optimizer)
    if known is not None and plan.settings.user_class == known.name:
        return known.torch_class
    if plan.settings.user_class is not None:
        message = (
            f"optimizer: this plan was made for {plan.settings.user_class}, and a plan file"
            " contains no classes; construct the optimizer from plan.param_groups()"
        )
        raise InputError(message, "class-not-saved")
    return CLASSES[plan.settings.optimizer]


def _single(plan: "Plan", model: nn.Module | None, options: Mapping[str, Any]) -> Optimizer:
    # defaults for groups that are added later
    tuned = {"lr": plan.settings.lr, "weight_decay": plan.settings.weight_decay}
    return construct(_class_of(plan), plan.param_groups(model), tuned, options)


def _with_rest(plan: "Plan", model: nn.Module | None, options: Mapping[str, Any]) -> Optimizer:
    """Return several optimizers as one: Muon for hidden matrices, and another for the rest."""
    tensors = plan.tensors(model)
    rows: dict[str, list[Row]] = {}
    for row in plan.rows:
        rows.setdefault(row.optimizer, []).append(row)
    parts: dict[str, Optimizer] = {}
    for name, rows_of_part in rows.items():
        groups = param_groups(rows_of_part, tensors)
        if name == plan.settings.optimizer:
            shapes = [row.shape for row in rows_of_part]
            kind = class_for(_class_of(plan), shapes, options.get(CONVENTION))
            parts[name] = construct(kind, groups, {}, options)
        else:
            parts[name] = construct(CLASSES[name], groups, {}, {})
    return CombinedOptimizer(parts)


def _must_decay_as_planned(made: Optimizer, plan: "Plan") -> None:
    """Raise an InputError if Adam or a subclass decouples weight decay, or if AdamW does not.

    Such an optimizer follows another update law than the plan.
    """
    record = record_named(plan.settings.optimizer)
    other = record.other_decay
    planned = plan.user_options.get("decoupled_weight_decay", record.decouples_decay)
    for group in made.param_groups:
        if other is not None and group.get("decoupled_weight_decay", planned) != planned:
            message = (
                f"optimizer: {class_name(type(made))} applies weight decay as {other} does, and"
                f" the plan is for {plan.settings.optimizer}; make the plan for it:"
                f" plan(..., optimizer={other!r}); construct a class of yours from"
                " plan.param_groups()"
            )
            raise InputError(message, "other-weight-decay", argument="optimizer")
