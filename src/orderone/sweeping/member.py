"""One model of a sweep with its plan, before the first step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from orderone.core.errors import InputError
from orderone.optimizers.table import ALGORITHMS, default_of, record_named, takes_keyword
from orderone.planning import Plan
from orderone.planning.plan import fused_options
from orderone.sweeping.trial import Scalar

SETTINGS = {
    "beta1": "betas",
    "beta2": "betas",
    "momentum": "momentum",
}  # name in trials -> name in torch


@dataclass(frozen=True)
class Member:
    """Model with its plan.

    `options` (betas, momentum) go to the constructor of the optimizer. All its other settings are
    in the plan.
    """

    model: nn.Module
    plan: Plan
    seed: int
    data_seed: int
    key: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def optimizer(self) -> Optimizer:
        return self.plan.optimizer(**fused_options(self.plan), **self.options)


def optimizer_options(
    name: str,
    settings: Mapping[str, Scalar],
    user_class: type[Optimizer] | None = None,
    user_options: Mapping[str, Any] | None = None,
    built: Mapping[str, Any] | None = None,
) -> dict[str, object]:
    """Return beta1, beta2 and momentum of a trial as keywords of torch.optim.

    Raise an InputError for a setting that the optimizer does not have. `built` are the options of
    the optimizer that `build` returns. Betas that neither sets have the default of the user's
    class, if there is one, or of the optimizer.
    """
    for setting, keyword in SETTINGS.items():
        if settings.get(setting) is None or record_named(name).has_setting(keyword):
            continue
        if user_class is None or not takes_keyword(user_class, keyword):
            known = [record.name for record in ALGORITHMS.values() if record.has_setting(keyword)]
            raise InputError(
                f"space: {name} has no {setting}; use the optimizer {' or '.join(known)}, or remove"
                f" {setting} from the space",
                "unknown-space-key",
                argument=setting,
            )
    options: dict[str, object] = dict(built or {})
    if settings.get("momentum") is not None:
        options["momentum"] = settings["momentum"]
    if settings.get("beta1") is not None or settings.get("beta2") is not None:
        kind = record_named(name).torch_class
        defaults = (built or {}).get("betas") or (user_options or {}).get("betas")
        defaults = defaults or default_of(user_class or kind, "betas") or default_of(kind, "betas")
        beta1, beta2, *others = defaults  # AdEMAMix has three
        beta1 = settings.get("beta1", beta1)
        beta2 = settings.get("beta2", beta2)
        options["betas"] = (beta1, beta2, *others)
    return options
