"""Check that the parameter groups of an optimizer are those of a plan."""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.optimizers import row_rates
from orderone.optimizers.combined import CombinedOptimizer
from orderone.optimizers.muon import CONVENTION
from orderone.optimizers.muon_rates import convention_name
from orderone.optimizers.table import find_record, nearest_record
from orderone.theory.exponents.updates import update_law

if TYPE_CHECKING:
    from orderone.planning.plan import Plan
    from orderone.planning.plan_row import Row


class BrokenRatios(InputError):  # noqa: N818
    """Learning rates, weight decays or eps of the groups do not have the ratios of the plan."""


def check_law(plan: "Plan", optimizer: Optimizer) -> None:
    """Raise an InputError if a known optimizer has another update law than those of the plan."""
    record = nearest_record(type(optimizer))
    if record is None or isinstance(optimizer, CombinedOptimizer):
        return
    names = list(dict.fromkeys(row.optimizer for row in plan.rows))
    planned = [find_record(name) for name in names]
    laws = [update_law(other.law) for other in planned if other is not None]
    if laws and update_law(record.law) not in laws:
        message = (
            f"optimizer: this plan has learning rates for {' and '.join(names)}, but steps of"
            f" {type(optimizer).__name__} depend on the gradient in another way; make the plan for"
            f" it: plan(..., optimizer={record.name!r}), with the lr that you tuned"
        )
        raise InputError(message, "other-update-law", argument="optimizer")


def planned_rates(plan: "Plan", optimizer: Optimizer) -> list[float]:
    """Return the plan's learning rate of every group.

    Raise an InputError if the groups mix tensors, or do not have exactly those of the plan.
    """
    planned: dict[int, Row] = {id(tensor): plan[name] for name, tensor in plan.tensors().items()}
    wanted: list[float] = []
    in_groups: set[str] = set()
    for number, group in enumerate(optimizer.param_groups):
        rows = _rows_of_group(group["params"], planned, number)
        for row in rows:
            in_groups.add(row.name)
            _same_setting("weight_decay", row.weight_decay, group, row, number)
            _same_setting(row.eps_name, row.eps, group, row, number)
            for setting, betas in row.averages.items():
                _same_setting(setting, betas, group, row, number)
            _same_rows(optimizer, group, row, number)
        rate = 0.0
        if rows:
            rate = rows[0].lr
        wanted.append(rate)
    missing = [row.name for row in plan.rows if row.name not in in_groups]
    if missing:
        message = (
            f"optimizer: {len(missing)} tensors of the plan are in no group, such as {missing[0]};"
            " use plan.param_groups()"
        )
        raise InputError(message, "tensors-without-group", argument="optimizer")
    return wanted


def _rows_of_group(
    parameters: Iterable[Tensor], planned: Mapping[int, "Row"], number: int
) -> list["Row"]:
    """Return the rows of the plan for a group; raise an InputError if their rates differ."""
    rows: list[Row] = []
    for parameter in parameters:
        if id(parameter) not in planned:
            message = (
                f"optimizer: group {number} has tensors that are not in the model of the plan;"
                " if the model was replaced or reloaded, call plan.attach(model)"
            )
            raise InputError(message, "tensors-without-group", argument="optimizer")
        rows.append(planned[id(parameter)])
    names = {row.lr: row.name for row in rows}
    if len(names) > 1:
        message = (
            f"optimizer: group {number} has {' and '.join(names.values())}, which need different"
            " learning rates; make the optimizer with plan.optimizer() or from"
            " plan.param_groups()"
        )
        raise BrokenRatios(message, "broken-ratios", argument="optimizer")
    return rows


def check_conventions(plan: "Plan", optimizer: Optimizer, model: nn.Module | None = None) -> None:
    """Raise BrokenRatios if Muon's learning rates follow another convention than the plan's."""
    planned = {id(tensor): plan[name] for name, tensor in plan.tensors(model).items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            row = planned.get(id(parameter))
            if row is None or (CONVENTION not in group and row.convention is None):
                continue
            present = convention_name(group.get(CONVENTION), CONVENTION)
            wanted = convention_name(row.convention)
            if present != wanted:
                message = (
                    f"{CONVENTION}: the optimizer has {present!r}, and the learning rate of"
                    f" {row.name} in this plan is for {wanted!r}; make the plan for it:"
                    f" plan(..., optimizer=functools.partial(orderone.optimizers.Muon,"
                    f" {CONVENTION}={present!r}))"
                )
                raise BrokenRatios(message, argument=CONVENTION)


def _same_setting(
    setting: str, planned: object, group: dict[str, Any], row: "Row", number: int
) -> None:
    if setting not in group or planned is None:
        return
    present = group[setting]
    pairs = list(zip(_as_tuple(planned), _as_tuple(present), strict=True))
    for ours, theirs in pairs:
        if not math.isclose(ours or 0.0, theirs or 0.0, rel_tol=1e-6):
            message = (
                f"optimizer: group {number} ({row.name}, ...) has {setting} {present}, the plan"
                f" has {planned}; pass {setting} to the plan, not to the optimizer"
            )
            raise BrokenRatios(message, "setting-of-the-plan", argument=setting)


def _same_rows(optimizer: Optimizer, group: dict[str, Any], row: "Row", number: int) -> None:
    """Raise BrokenRatios if the rows of a packed projection do not get the plan's settings."""
    planned = row.row_settings
    present = group.get(row_rates.KEY)
    if planned == present and (planned is None or row_rates.obeys(optimizer)):
        return
    message = (
        f"optimizer: group {number} ({row.name}, ...) does not have the plan's learning rates for"
        " the rows of queries and keys; make the optimizer with plan.optimizer() or from"
        " plan.param_groups(), and let it be a torch.optim.Optimizer"
    )
    raise BrokenRatios(message, "rows-without-rates", argument="optimizer")


def _as_tuple(value: object) -> tuple[Any, ...]:
    """Return the numbers of a setting; eps of Adafactor is a pair."""
    if isinstance(value, (tuple, list)):
        return tuple(value)
    return (value,)
