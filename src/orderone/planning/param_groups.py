"""Parameter groups of torch.optim: learning rate, weight decay and eps of every tensor."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from orderone.optimizers.table import FUSED, Algorithm, Eps, class_name
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
    planned = plan.settings.optimizer == "adamw"
    for group in made.param_groups:
        if (
            plan.settings.optimizer in ("adam", "adamw")
            and group.get("decoupled_weight_decay", planned) != planned
        ):
            other = "adam" if planned else "adamw"
            raise ValueError(
                f"optimizer: {class_name(type(made))} applies weight decay as {other} does, and the"
                f" plan is for {plan.settings.optimizer}; make the plan for {other} and construct"
                " the class from plan.param_groups()"
            )


def weight_decay(base: float, f: Factors, a: Algorithm, convention: str) -> float:
    return base * decay_factor(f, a.name, convention)


def eps(a: Algorithm, base: Eps, f: Factors, evidence: Evidence) -> Eps:
    """Adam's eps is compared with entries of the gradient, Muon's with its norm. Adafactor's are a
    floor for gradients and one for the size of the weights."""
    if base is None:
        return None
    if isinstance(base, tuple):
        floor, size = base
        if floor is None and f.gradient != 1:
            floor = torch.finfo(
                evidence.item.tensor.dtype
            ).eps  # what torch puts in the place of None
        return (None if floor is None else floor * f.gradient, size * f.std)
    if a.name == "muon":
        return (
            base
            * f.gradient
            * math.sqrt(math.prod(evidence.item.shape) / math.prod(evidence.base_shape))
        )
    return base * f.gradient


def torch_muon_adjustment(shape: tuple[int, ...]) -> float:
    """What torch.optim.Muon multiplies its learning rate with by itself: sqrt(max(1, rows /
    columns))."""
    rows, columns = shape
    return max(1.0, rows / columns) ** 0.5


def groups(rows: "tuple[Row, ...]", tensors: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
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
