"""One model of a sweep, initialised and planned, before its first step."""

from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from orderone.optimizers.table import ALGORITHMS, CLASSES, default_of
from orderone.planning import Plan
from orderone.planning.param_groups import fused_options

SETTINGS = {"beta1": "betas", "beta2": "betas", "momentum": "momentum"}  # of trials, and of torch


@dataclass
class Member:
    """`options` go to the constructor of the optimizer: betas, momentum. Everything else of it is
    in the plan."""

    model: nn.Module
    plan: Plan
    seed: int
    data_seed: int
    key: str
    options: dict[str, Any] = field(default_factory=dict)

    def optimizer(self) -> Optimizer:
        return self.plan.optimizer(**fused_options(self.plan), **self.options)


def optimizer_options(
    name: str, settings: Any, kind: type[Optimizer] | None = None
) -> dict[str, Any]:
    """beta1, beta2 and momentum of a trial, in the words of torch.optim; a ValueError where an
    optimizer has none.

    `kind` is the user's class, if there is one: what the trial does not set has the default of the
    class.
    """
    found: dict[str, Any] = {}
    for wanted, keyword in SETTINGS.items():
        known = [record.name for record in ALGORITHMS.values() if record.has_setting(keyword)]
        if settings.get(wanted) is not None and name not in known:
            raise ValueError(
                f"{wanted}: {name} has none; expected optimizer {' or '.join(known)}, or no"
                f" {wanted}"
            )
    if settings.get("momentum") is not None:
        found["momentum"] = settings.get("momentum")
    if settings.get("beta1") is not None or settings.get("beta2") is not None:
        beta1, beta2 = default_of(kind or CLASSES[name], "betas") or default_of(
            CLASSES[name], "betas"
        )
        found["betas"] = (settings.get("beta1", beta1), settings.get("beta2", beta2))
    return found
