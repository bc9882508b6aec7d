"""Parameter groups of torch.optim: tensors with equal settings share one."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor

from orderone.optimizers import row_rates
from orderone.optimizers.muon import CONVENTION
from orderone.optimizers.table import Eps
from orderone.planning.plan_row import Row

# optimizer, lr, weight decay, eps, betas, settings of rows
GroupKey: TypeAlias = tuple[str, float, float, Eps, tuple[float, ...] | None, str]


def in_groups(rows: Sequence[Row]) -> str:
    """Return the numbers of tensors and of parameter groups in words: `52 tensors in 3 groups`."""
    groups = len({_group_key(row) for row in rows})
    return f"{len(rows)} tensor{'s' * (len(rows) != 1)} in {groups} group{'s' * (groups != 1)}"


def param_groups(rows: Sequence[Row], tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return parameter groups: tensors with equal settings share one, with names for logging."""
    merged: dict[GroupKey, dict[str, Any]] = {}
    for row in rows:
        key = _group_key(row)
        group = merged.setdefault(
            key, {"params": [], "names": [], "roles": {}, **_group_settings(row)}
        )
        group["params"].append(tensors[row.name])
        group["names"].append(row.name)
        group["roles"][row.role] = None
    for group in merged.values():
        group["name"] = "+".join(group.pop("roles"))
    return list(merged.values())


def _group_key(row: Row) -> GroupKey:
    rows = str(row.row_settings)
    return (row.optimizer, row.lr, row.weight_decay, row.eps, row.betas, rows)


def _group_settings(row: Row) -> dict[str, Any]:
    settings: dict[str, Any] = {"lr": row.lr, "weight_decay": row.weight_decay}
    if row.eps is not None:
        settings[row.eps_name] = row.eps
    settings |= row.averages
    if row.convention is not None:
        settings[CONVENTION] = row.convention
    rows = row.row_settings
    if rows is not None:
        row_rates.activate()
        settings[row_rates.KEY] = rows
    return settings
