"""OLMo-core 3.0: `group_overrides` of the optimizer's configuration.

Shell patterns in the names of tensors, with options of the parameter group. A tensor that two
overrides match would be in two groups; patterns of an export never overlap. Schedulers start from
the `initial_lr` of each group, so ratios stay, except during a warm-up from a `warmup_min_lr` other
than 0.

Its own data parallelism (OLMoDDPModel) adds `module.` in front of all names, and says nothing about
patterns that match nothing. Everywhere else they are an error. So patterns begin with a star.
"""

import json
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from typing import ClassVar

from torch import nn

from orderone.core.optional import need_package
from orderone.planning.exports.content import Content
from orderone.planning.exports.format import Base, Data, Format, Values, group_options, values
from orderone.planning.exports.patterns import globs


class OlmoCore(Format):
    optimizers: ClassVar[Mapping[str, str]] = {"adam": "adam", "adamw": "adamw", "lion": "lion"}
    advice: ClassVar[str] = (
        "Pass OptimGroupOverride(**entry) for each entry as group_overrides of AdamWConfig."
    )
    schedule_remedy: ClassVar[str] = (
        "Leave warmup_min_lr and decay_min_lr at 0, which are one number for all groups; alpha_f is"
        " a fraction of the learning rate of each group. ExponentialScheduler starts from one"
        " lr_min: use another schedule"
    )

    def data(self, content: Content, base: Base) -> Data:
        overrides: list[Data] = []
        for group in content.groups:
            names = globs(group.names, content.names, anywhere=True)
            overrides.append({"params": names, "opts": group_options(group, base)})
        settings: Data = {"type": self.optimizers.get(base.optimizer, base.optimizer)}
        settings["lr"] = base.lr
        if base.optimizer != "adam":  # AdamConfig has none; that of every group is in its options
            settings["weight_decay"] = base.weight_decay
        return {**settings, "group_overrides": overrides}

    def text(self, data: Data) -> str:
        return json.dumps(data, indent=2) + "\n"

    def build(self, data: Data, model: nn.Module | None) -> object:
        module = need_package("olmo_core.optim", "ai2-olmo-core")
        return [module.OptimGroupOverride(**entry) for entry in data["group_overrides"]]

    def read(self, data: Data, names: Collection[str]) -> dict[str, Values]:
        settings: dict[str, Values] = {}
        for entry in data["group_overrides"]:
            for name in names:
                if any(fnmatch(name, pattern) for pattern in entry["params"]):
                    settings[name] = values(entry["opts"])
        return settings
