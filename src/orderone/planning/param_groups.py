"""Parameter groups of torch.optim: learning rate, weight decay and eps of every tensor."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from orderone.optimizers.table import ALGORITHMS, FUSED, Algorithm, Eps, TensorScale, class_name
from orderone.planning.roles.evidence import Evidence
from orderone.rules.factors import Factors, decay_factor

if TYPE_CHECKING:
    from orderone.planning.plan import Plan, Row


def fused_options(plan: "Plan") -> dict[str, Any]:
    """Return the option that makes an update one kernel, if the optimizer of `plan` is a class of
    torch that has it."""
    if plan.settings.user_class is None and plan.settings.optimizer in FUSED:
        return {"fused": True}
    return {}


def must_decay_as_planned(made: Optimizer, plan: "Plan") -> None:
    """Raise a ValueError if a subclass of Adam decouples weight decay, or one of AdamW does not:
    that is another law."""
    record = ALGORITHMS[plan.settings.optimizer]
    other = record.other_decay
    planned = record.decouples_decay
    for group in made.param_groups:
        if other is not None and group.get("decoupled_weight_decay", planned) != planned:
            raise ValueError(
                f"optimizer: {class_name(type(made))} applies weight decay as {other} does, and the"
                f" plan is for {plan.settings.optimizer}; make the plan for {other} and construct"
                " the class from plan.param_groups()"
            )


def weight_decay(base: float, f: Factors, a: Algorithm, convention: str) -> float:
    return base * decay_factor(f, a.law, convention)


def eps(a: Algorithm, base: Eps, f: Factors, evidence: Evidence) -> Eps:
    """Return eps for a tensor: the optimizer's record says what it is compared with."""
    if base is None:
        return None
    scale = TensorScale(
        evidence.item.shape,
        evidence.base_shape,
        evidence.item.tensor.dtype,
        f.std,
        f.gradient,
    )
    return a.scaled_eps(base, scale)


def groups(rows: "Sequence[Row]", tensors: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Tensors with equal settings share a group, which keeps their names for logging."""
    merged: dict[tuple, dict[str, Any]] = {}
    for row in rows:
        key = (row.optimizer, row.lr, row.weight_decay, row.eps)
        group = merged.setdefault(key, {"params": [], "names": [], "roles": {}, **_settings(row)})
        group["params"].append(tensors[row.name])
        group["names"].append(row.name)
        group["roles"][row.role] = None
    for group in merged.values():
        group["name"] = "+".join(group.pop("roles"))
    return list(merged.values())


def _settings(row: "Row") -> dict[str, Any]:
    settings: dict[str, Any] = {"lr": row.lr, "weight_decay": row.weight_decay}
    if row.eps is not None:
        settings["eps"] = row.eps
    return settings
