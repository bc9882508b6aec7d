"""Megatron-LM (megatron-core 0.16): `config_overrides` of the optimizer.

A key matches names by shell patterns. The overrides of all keys that match are merged. The
scheduler moves each group between its own `max_lr` and `min_lr`, and multiplies the weight decay of
the configuration by `wd_mult`. Each group therefore gets a `min_lr` in proportion to its `max_lr`.

The optimizer sees the model inside wrappers (data parallelism, mixed precision), each of which adds
`module.` to all names. A tensor that no key matches gets the settings of the configuration without
a message, so patterns match names with and without these prefixes.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from typing import ClassVar

from torch import nn

from orderone.core.optional import need_package
from orderone.planning.exports.content import Content
from orderone.planning.exports.format import Base, Data, Format, Values
from orderone.planning.exports.patterns import globs

WRAPPER = "module."


class Megatron(Format):
    optimizers: ClassVar[Mapping[str, str]] = {"adamw": "adam", "sgd": "sgd"}
    holds: ClassVar[frozenset[str]] = frozenset({"eps"})
    takes_min_lr: ClassVar[bool] = True
    numbers_by_stage: ClassVar[bool] = True
    advice: ClassVar[str] = (
        "Pass the overrides to get_megatron_optimizer(config, model, config_overrides=...), and the"
        " other values to OptimizerConfig and the scheduler."
    )
    schedule_remedy: ClassVar[str] = (
        "Pass the smallest learning rate as plan.export('megatron', min_lr=...), which gives every"
        " group its share, and leave the start of the warm-up (lr_warmup_init) at 0"
    )

    def takes(self, optimizer: str, option: str) -> bool:
        return optimizer == "sgd" and option == "momentum"

    def data(self, content: Content, base: Base) -> Data:
        overrides: list[Data] = []
        for group in content.groups:
            entry: Data = {
                "name": globs(group.names, content.names, prefix=WRAPPER),
                "max_lr": group.lr,
                "min_lr": base.min_lr * group.lr / base.lr,
                "wd_mult": group.weight_decay / base.weight_decay if base.weight_decay else 0.0,
            }
            if group.eps is not None:
                entry["eps"] = group.eps
            overrides.append(entry)
        settings: Data = {
            "optimizer": self.optimizers.get(base.optimizer, base.optimizer),
            "lr": base.lr,
            "min_lr": base.min_lr,
            "weight_decay": base.weight_decay,
        }
        if base.optimizer == "sgd":  # its own default is 0.9
            settings["sgd_momentum"] = base.options.get("momentum", 0.0)
        if base.betas is not None:
            settings["adam_beta1"], settings["adam_beta2"] = base.betas
        return {**settings, "config_overrides": overrides}

    def text(self, data: Data) -> str:
        settings = [f"{key}={data[key]!r}" for key in data if key != "config_overrides"]
        lines = [f"config = OptimizerConfig({', '.join(settings)})", "config_overrides = {"]
        for entry in data["config_overrides"]:
            lines.append("    ParamKey(\n        name=(")
            lines += [f"            {name!r}," for name in entry["name"]]
            values = {key: value for key, value in entry.items() if key != "name"}
            lines.append(f"        )\n    ): {values!r},")
        return "\n".join([*lines, "}\n"])

    def build(self, data: Data, model: nn.Module | None) -> object:
        module = need_package("megatron.core.optimizer.optimizer_config", "megatron-core")
        overrides: dict[object, Data] = {}
        for entry in data["config_overrides"]:
            settings = {key: value for key, value in entry.items() if key != "name"}
            overrides[module.ParamKey(name=tuple(entry["name"]))] = settings
        return overrides

    def read(self, data: Data, names: Collection[str]) -> dict[str, Values]:
        settings: dict[str, Values] = {}
        for name in names:
            merged: Data = {}
            for entry in data["config_overrides"]:
                if any(fnmatch(name, pattern) for pattern in entry["name"]):
                    merged.update(entry)
            if merged:
                weight_decay = data["weight_decay"] * merged["wd_mult"]
                betas = None
                if "adam_beta1" in data:
                    betas = (data["adam_beta1"], data["adam_beta2"])
                settings[name] = Values(merged["max_lr"], weight_decay, merged.get("eps"), betas)
        return settings
