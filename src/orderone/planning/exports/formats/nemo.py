"""NeMo Automodel 0.7: `param_group_overrides` of the optimizer, multipliers of lr and weight decay.

The first pattern that `re.search` finds in the name wins; other tensors have the settings of the
optimizer. The scheduler multiplies learning rate, its minimum and weight decay of each group; in a
recipe without a scheduler all groups have the same settings.

DDP, Megatron-FSDP and compilation add parts in front of all names, and the recipe removes only what
activation checkpointing adds. A pattern that matches nothing is a line in its log, so patterns
match names with and without these parts.
"""

from collections.abc import Collection, Mapping
from typing import ClassVar

from torch import nn

from orderone.core.optional import need_package
from orderone.planning.exports.content import Content
from orderone.planning.exports.format import Base, Data, Format, Values, first_match, read_betas
from orderone.planning.exports.patterns import regex
from orderone.planning.exports.yaml_text import yaml_text

CHECKPOINT = "_checkpoint_wrapped_module."


class Nemo(Format):
    optimizers: ClassVar[Mapping[str, str]] = {
        "adam": "torch.optim.Adam",
        "adamw": "torch.optim.AdamW",
        "sgd": "torch.optim.SGD",
    }
    holds: ClassVar[frozenset[str]] = frozenset({"options"})
    has_default: ClassVar[bool] = True
    advice: ClassVar[str] = (
        "Put it into the section `optimizer` of the recipe's YAML file. The recipe needs a section"
        " `lr_scheduler`: the scheduler applies the multipliers, and without it they do nothing."
    )

    def names_in(self, model: nn.Module) -> list[str]:
        return [name.replace(CHECKPOINT, "") for name in super().names_in(model)]

    def data(self, content: Content, base: Base) -> Data:
        eps = {group.eps for group in content.groups}
        merged: dict[tuple[float, float], list[str]] = {}  # groups that differ only in eps
        for group in content.groups:
            lr_mult = group.lr / base.lr
            if base.weight_decay:
                wd_mult = group.weight_decay / base.weight_decay
            else:
                wd_mult = 1.0
            merged.setdefault((lr_mult, wd_mult), []).extend(group.names)
        merged.pop((1.0, 1.0), None)  # what the optimizer itself says
        overrides: list[Data] = []
        for (lr_mult, wd_mult), names in merged.items():
            pattern = regex(names, content.names, wrapped=True)
            overrides.append({"pattern": pattern, "lr_mult": lr_mult, "wd_mult": wd_mult})
        optimizer: Data = {
            "_target_": self.optimizers.get(base.optimizer, base.optimizer),
            "lr": base.lr,
            "weight_decay": base.weight_decay,
            **base.options,
        }
        if len(eps) == 1 and None not in eps:
            optimizer["eps"] = eps.pop()
        if base.betas is not None:
            optimizer["betas"] = list(base.betas)
        return {"optimizer": {**optimizer, "param_group_overrides": overrides}}

    def text(self, data: Data) -> str:
        comment = (
            "# lr_mult and wd_mult are applied by the scheduler: keep a section lr_scheduler\n"
        )
        return comment + yaml_text(data)

    def build(self, data: Data, model: nn.Module | None) -> object:
        module = need_package("nemo_automodel.components.optim.optimizer", "nemo-automodel")
        entries = data["optimizer"]["param_group_overrides"]
        return [module.ParamGroupOverride(**entry) for entry in entries]

    def read(self, data: Data, names: Collection[str]) -> dict[str, Values]:
        optimizer = data["optimizer"]
        matched = first_match(optimizer["param_group_overrides"], names)
        settings: dict[str, Values] = {}
        for name in names:
            entry = matched.get(name, {"lr_mult": 1.0, "wd_mult": 1.0})
            lr = optimizer["lr"] * entry["lr_mult"]
            weight_decay = optimizer["weight_decay"] * entry["wd_mult"]
            settings[name] = Values(lr, weight_decay, optimizer.get("eps"), read_betas(optimizer))
        return settings
